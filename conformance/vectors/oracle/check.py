"""Holds model.py, trellis.py and rowcodes.py against programs of other people.

    python check.py ../../../testdata

Prints what was compared, and exits with 1 at a difference. MLX runs on the CPU.
"""
import json
import pathlib
import struct
import sys

import mlx.core as mx
import numpy as np

import model
import rowcodes
import trellis
from model import F

mx.set_default_device(mx.cpu)
TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "U8": np.uint8, "I8": np.int8, "U32": np.uint32,
         "U16": np.uint16, "I32": np.int32}


def read(path):
    b = path.read_bytes()
    n = struct.unpack("<Q", b[:8])[0]
    out = {}
    for k, v in json.loads(b[8:8 + n]).items():
        if k != "__metadata__":
            lo, hi = v["data_offsets"]
            out[k] = v["dtype"], np.frombuffer(b[8 + n + lo:8 + n + hi], TYPES[v["dtype"]]).reshape(v["shape"])
    return out


def words(a):
    return np.ascontiguousarray(a).view({1: np.uint8, 2: np.uint16, 4: np.uint32}[a.dtype.itemsize])


compared = 0


def same(what, got, want, nan=None):
    global compared
    got, want = words(got).reshape(-1), words(want).reshape(-1)
    bad = got != want
    if nan is not None:
        bad &= ~(nan(got) & nan(want))
    if len(got) != len(want) or bad.any():
        sys.exit(f"{what}: {bad.sum()} of {len(want)} differ")
    compared += len(want)


def report(what):
    global compared
    print(f"{what}: {compared} elements equal")
    compared = 0


def hadamard():
    rng = np.random.default_rng(1)
    for d in (32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 1024):
        x = rng.standard_normal((8, d)).astype(F)
        same(f"hadamard {d}", model.hadamard(x), np.array(mx.hadamard_transform(mx.array(x))))
        signs = 1 - 2 * mx.random.randint(0, 2, shape=[d], key=mx.random.key(42))
        same(f"signs {d}", model.pm(model.TABLES["signs"][str(d)]), np.array(signs.astype(mx.float32)))
    report("MLX hadamard and signs")


def sums():
    """Counts, and does not judge: MLX's order of a sum is its own."""
    rng = np.random.default_rng(2)
    y = rng.standard_normal((100000, 32)).astype(F)
    ours = np.sqrt(model.tree(y * y)[:, 0] * F(1 / 32))
    theirs = np.array(mx.sqrt(mx.mean(mx.square(mx.array(y)), axis=-1)))
    f16 = (model.to_bits(ours, "f16") != model.to_bits(theirs, "f16")).sum()
    print(f"MLX mean of squares: {(ours != theirs).sum()} of {len(y)} f32 scales differ from the tree's, {f16} once stored as f16")


def kv(root):
    formats = {"q8_0": (8, True), "uint8": (8, False), "q5_0": (5, False), "q4_0": (4, False), "uint2": (2, False)}
    nan16 = lambda b: (b & 0x7FFF) > 0x7C00
    nan32 = lambda b: (b & 0x7FFFFFFF) > 0x7F800000
    for path in sorted(root.glob("kv/*.safetensors")):
        f = read(path)
        t, x = f["x"]
        x = model.from_bits(words(x), t.lower())
        d = x.shape[1]
        infix = path.stem.split("_", 2)[2] + "." if path.stem.count("_") > 1 else ""
        group = 64 if infix == "g64." else 32
        for name, (bits, signed) in formats.items():
            for policy in ("compat", "finite"):
                key = f"k.{name}.{infix}{policy}."
                if key + "codes" not in f:
                    continue
                e = model.encode_keys(x, bits, signed, group, "f16", policy)
                same(key + "codes", e["codes"], f[key + "codes"][1])
                same(key + "scales", e["scales"], f[key + "scales"][1], nan16)
                same(key + "zeros", e["zeros"], f[key + "zeros"][1], nan16)
                if key + "decoded" in f:
                    t, want = f[key + "decoded"]
                    _, y = model.decode_keys(e["codes"], e["scales"], e["zeros"], d, bits, signed, group, "f16")
                    same(key + "decoded", model.to_bits(y, t.lower()), want, nan32 if t == "F32" else nan16)
        for bits in (2, 3, 4, 5, 8):
            for rule in ("rms", "search"):
                key = f"v.{bits}.{infix}" + ("search." if rule == "search" else "")
                if key + "codes" not in f:
                    continue
                e = model.encode_values(x, bits, group, "f16", rule)
                same(key + "codes", e["codes"], f[key + "codes"][1])
                same(key + "scales", e["scales"], f[key + "scales"][1])
                _, y = model.decode_values(e["codes"], e["scales"], d, bits, group, "f16")
                for out, z in (("rotated", y), ("decoded", model.unrotate(y)), ("decoded_bf16", model.unrotate(y))):
                    if key + out in f:
                        t, want = f[key + out]
                        same(key + out, model.to_bits(z, t.lower()), want)
    report("vllm-metal's KV codec")


def codes(root):
    f = read(root / "trellis/codes.safetensors")
    for name, (_, want) in f.items():
        _, code, L = name.split(".")
        same(name, trellis.values(code, int(L[1:]))[0], want)
    report("codes")
    f = read(root / "trellis/encode.safetensors")
    for name in f:
        # enc.L12.k2.T256.CODE.{tail,free}.x
        if name.endswith(".x"):
            _, L, k, T, code, ends, _ = name.split(".")
            x, L, k = f[name][1], int(L[1:]), int(k[1:])
            values, _ = trellis.values(code, L)
            got = trellis.tail_biting(x, values, L, k) if ends == "tail" else trellis.viterbi(x, values, L, k)
            want = f[name[:-1] + "states"][1]
            same(name, got.astype(want.dtype), want)
    report("trellis states")
    f = read(root / "trellis/rows.safetensors")
    for name in f:
        # {rows,real}.k2[.T128].{w,codes,scales,decoded}: L = 12, 1mad, compat
        if name.endswith(".w"):
            base = name[:-1]
            parts = base.split(".")
            k, T = int(parts[1][1:]), int(parts[2][1:]) if parts[2] else 256
            scales, states, packed = trellis.encode(f[name][1], 12, k, T, "1mad", "compat", "rms")
            same(base + "scales", scales, f[base + "scales"][1])
            same(base + "codes", packed, f[base + "codes"][1])
            same(base + "decoded", trellis.decode(scales, states, "1mad", 12), f[base + "decoded"][1])
    report("trellis rows")


def row_codes(root):
    f = read(root / "row_codes.safetensors")
    for name in f:
        # dD.{levels,trellis}B[.centred].scales
        base, _, last = name.rpartition(".")
        if last != "scales":
            continue
        d, code, *centred = base.split(".")
        x = f[d + ".x"][1]
        mean, gain = rowcodes.centre(x[4:])
        same(d + ".centre.mu", mean, words(f[d + ".centre.mu"][1]))
        same(d + ".centre.gain", gain, words(f[d + ".centre.gain"][1]))
        scales, codes = rowcodes.encode(x, code[:-1], int(code[-1]), *((mean, gain) if centred else ()))
        same(name, scales, f[name][1].reshape(-1))
        same(base + ".codes", codes, f[base + ".codes"][1])
    report("row codes")


if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1])
    hadamard()
    sums()
    with np.errstate(over="ignore"):  # f16 infinities are meant
        kv(root)
    codes(root)
    row_codes(root)
