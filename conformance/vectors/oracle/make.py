"""Writes the vectors of ../: one scenario a file. See ../README.md.

    python make.py

Every value comes from model.py and trellis.py. Nothing else writes these files.
"""
import json
import pathlib

import numpy as np

import digest
import model
import trellis
from model import F

DIR = pathlib.Path(__file__).parent.parent
PROVENANCE = {"by": "oracle/make.py", "numpy": np.__version__}


def text(a):
    """Little-endian bytes in hex."""
    a = np.ascontiguousarray(a)
    return a.astype(a.dtype.newbyteorder("<")).tobytes().hex()


def floats(x):
    """f32 in hex, NaN without its payload."""
    return text(np.where(np.isnan(x), np.uint32(0x7FC00000), np.ascontiguousarray(x, F).view(np.uint32)))


def stored(b, t):
    return digest.clean(b, t).tobytes().hex()


def write(name, kind, comment, params, x, dtype, stages, packed, decoded):
    v = {"schema": 1, "kind": kind, "comment": comment, "provenance": PROVENANCE, "params": params,
         "input": {"dtype": dtype, "shape": list(x.shape), "bits": text(model.to_bits(x, dtype))},
         "stages": stages, "packed": packed, "decoded": decoded}
    (DIR / f"{name}.json").write_text(json.dumps(v, indent=1) + "\n")


# --- data: rows of d elements, exact in any type unless said otherwise --------

def normal(d, dtype, seed):
    return digest.rows(100 + seed, np.array([0, 1]), dtype, d)


def constants(d, dtype, seed):
    row = np.repeat(np.array([9, 0, -0.125, 1000, -9, 2.0**-10, 3, -1000], F), 32)
    return np.stack([np.resize(row, d), np.resize(row[::-1], d)]).astype(F)


def zeros(d, dtype, seed):
    x = np.zeros((2, d), F)
    x[0, ::3] = -0.0
    x[1, :] = -0.0
    return x


def thresholds(d, dtype, seed):
    at = np.array([2.0**-62, 2.0**-63, 2.0**-64 * (1 + 2.0**-23), 2.0**-64, 2.0**-64 * (1 - 2.0**-24), 2.0**-65, 2.0**-126, 2.0**-149], F)
    x = np.resize(at, (2, d)) * np.where(np.arange(d) % 3 == 1, F(-1), F(1))
    x[1, ::5] = normal(d, "f32", 7)[0, ::5]
    return model.rounded(x, dtype)


def ties(d, dtype, seed):
    """Halves of a step of 1/4: x/se is exactly between two integers."""
    step = np.arange(d) % 31 - 15 if seed % 2 else np.arange(d) % 32
    x = np.stack([step, step[::-1]]).astype(F) * F(0.125)
    return x


def outliers(d, dtype, seed):
    x = normal(d, dtype, seed + 1)
    x[:, 5::37] *= F(64)
    return x


DATA = {"normal": (normal, "rows of the digests' generator"),
        "constants": (constants, "groups of one value: degenerate for keys"),
        "zeros": (zeros, "zeros of both signs"),
        "thresholds": (thresholds, "both sides of the canonical threshold, 2^-64, and subnormals"),
        "ties": (ties, "multiples of 1/8: quotients halfway between integers"),
        "outliers": (outliers, "one element in 37 is 64 times as large")}


def keys():
    n = 0
    for bits, signed in digest.FORMATS:
        for policy in ("finite", "compat"):
            for data, (f, comment) in DATA.items():
                st, dt, out = digest.SCALES[n % 3 if n % 2 else 0], digest.DTYPES[n // 2 % 3], digest.DTYPES[(n + 1) % 3]
                group = (32, 64)[n // 3 % 2]
                d = (64, 128)[n // 5 % 2]
                x = model.rounded(f(d, dt, n), dt)
                n += 1
                e = model.encode_keys(x, bits, signed, group, st, policy)
                index, y = model.decode_keys(e["codes"], e["scales"], e["zeros"], d, bits, signed, group, st)
                assert (index == e["index"]).all()
                write(f"keys-{bits}{'s' if signed else 'u'}-{policy}-{data}", "keys", comment,
                      {"headDim": d, "bits": bits, "signed": signed, "group": group, "scaleType": st, "policy": policy}, x, dt,
                      {"canon": floats(e["canon"]), "scale": floats(e["scale"]), "zero": floats(e["zero"]), "index": text(e["index"])},
                      {"codes": text(e["codes"]), "scales": stored(e["scales"], st), "zeros": stored(e["zeros"], st)},
                      {"dtype": out, "bits": digest.out(y, out, policy).tobytes().hex()})


def values():
    n = 0
    for bits in (2, 3, 4, 5, 8):
        for rule in ("rms", "search"):
            for data, (f, comment) in DATA.items():
                st, dt, out = digest.SCALES[n % 3 if n % 2 else 0], digest.DTYPES[n // 2 % 3], digest.DTYPES[(n + 1) % 3]
                d = (64, 96, 128, 160, 224)[n % 5]
                group = 64 if d % 64 == 0 and n % 3 == 0 else 32
                x = model.rounded(f(d, dt, n), dt)
                n += 1
                e = model.encode_values(x, bits, group, st, rule)
                index, y = model.decode_values(e["codes"], e["scales"], d, bits, group, st)
                assert (index == e["index"]).all()
                write(f"values-{bits}-{rule}-{data}", "values", comment,
                      {"headDim": d, "bits": bits, "group": group, "scaleType": st, "rule": rule}, x, dt,
                      {"canon": floats(e["canon"]), "rotated": floats(e["rotated"]), "scale": floats(e["scale"]), "index": text(e["index"])},
                      {"codes": text(e["codes"]), "scales": stored(e["scales"], st)},
                      {"dtype": out, "rotated": digest.out(y, out).tobytes().hex(), "bits": digest.out(model.unrotate(y), out).tobytes().hex()})


def weights():
    n = 0
    for k in (1, 2, 3, 4):
        for code in ("1mad", "3inst", "rand"):
            for data in ("normal", "zeros", "ties"):
                policy, rule = ("finite", "compat")[n % 2], ("rms", "refit")[n // 2 % 2]
                L, T, out = k + 4 + n % 3, (32, 64)[n // 3 % 2], digest.DTYPES[n % 3]
                f, comment = DATA[data]
                x = f(2 * T, "f32", n)
                n += 1
                scales, states, words = trellis.encode(x, L, k, T, code, policy, rule)
                y = trellis.decode(scales, states, code, L)
                write(f"weights-{k}-{code}-{data}", "weights", comment,
                      {"L": L, "K": k, "T": T, "code": code, "policy": policy, "rule": rule}, x, "f32",
                      {"canon": floats(model.canon(x)), "index": text(states.astype(np.uint16))},
                      {"codes": text(words), "scales": stored(scales, "f16")},
                      {"dtype": out, "bits": digest.out(y, out, "compat").tobytes().hex()})


if __name__ == "__main__":
    for p in DIR.glob("*-*.json"):
        p.unlink()
    keys()
    values()
    weights()
