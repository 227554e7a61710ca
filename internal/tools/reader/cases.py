"""Makes the files that reader.py check compares.

    python cases.py TURBOTRELLIS DIR

Some are encoded by the command from bundled samples and from random data; some are
written here, with random codes and scales, in settings that the command does not offer,
and some break one rule of docs/format.md each. The command decodes the good ones and
must refuse the bad ones.
"""
import copy
import json
import pathlib
import struct
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[3]
TYPES = ("f32", "f16", "bf16")
KEYS = {"q8_0": (8, True), "uint8": (8, False), "q5_0": (5, False), "q4_0": (4, False), "uint3": (3, False), "uint2": (2, False)}
VALUES = (2, 3, 4, 5, 8)
# Every m of m·2^k, and lengths that are no power of two and no multiple of 12, 20, 28 for keys.
VALUE_DIMS = (32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 2048)
KEY_DIMS = (64, 32, 288, 96, 128, 160, 576)
rng = np.random.default_rng(20261130)


def write(path, tensors, metadata):
    """A safetensors file of (dtype, shape, bytes) by name, in the order given."""
    header, at = {"__metadata__": metadata} if metadata else {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, ensure_ascii=False).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))


def stored(x, dtype):
    """Numbers as bytes of the type."""
    if dtype == "F32":
        return x.astype("<f4").tobytes()
    if dtype == "F16":
        return x.astype("<f2").tobytes()
    return (x.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()


def normal(shape):
    """Normal numbers with outliers, constants, zeros of both signs, tiny numbers and the largest of f16."""
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-6, 6, shape[:-1] + (1,)))
    special = rng.integers(0, 64, shape)
    x = np.where(special == 0, x * 64, x)
    x = np.where(special == 1, -0.0, x)
    x = np.where(special == 2, x * 2.0**-70, x)
    kind = rng.integers(0, 12, shape[:-1] + (1,))
    x = np.where(kind == 0, 9.0, x)
    x = np.where(kind == 1, 0.0, x)
    x[..., 7:8] = np.where(kind == 2, 65504, x[..., 7:8])
    return x


class Cases:
    def __init__(self, command, folder):
        self.command, self.dir, self.count = command, folder, 0

    def run(self, *args):
        p = subprocess.run([self.command, *map(str, args)], capture_output=True, text=True)
        if p.returncode:
            sys.exit(f"{' '.join(p.args)}: {p.stderr}")

    def refused(self, kind, path):
        p = subprocess.run([self.command, kind, "decode", path, self.dir / "never"], capture_output=True, text=True)
        if p.returncode != 1:
            sys.exit(f"{path}: turbotrellis {kind} decode exits with {p.returncode}, want 1: {p.stderr}")

    def kv_decode(self, name, types=TYPES):
        packed = self.dir / f"{name}.packed.safetensors"
        self.run("kv", "decode", packed, self.dir / f"{name}.own.safetensors")
        for t in types:
            self.run("kv", "decode", packed, self.dir / f"{name}.{t}.safetensors", "--dtype", t)

    def trellis_decode(self, name, suffix):
        for t in TYPES:
            self.run("trellis", "decode", self.dir / f"{name}.packed{suffix}", self.dir / f"{name}.{t}{suffix}", "--dtype", t)

    # --- KV ---

    def kv_encoded(self):
        sample = ROOT / "cmd/turbotrellis/demo/sample.safetensors"
        minilm = ROOT / "testdata/kv_minilm.safetensors"
        dims = [(VALUE_DIMS[i], KEY_DIMS[i % len(KEY_DIMS)], ("F32", "F16", "BF16")[i % 3]) for i in range(len(VALUE_DIMS))]
        inputs = []
        for group in (32, 64):
            tensors = {}
            for i, (v, k, dtype) in enumerate(dims):
                if v % group == 0:
                    k = -(-k // group) * group
                    tensors[f"layers.{i}.keys"] = dtype, (2, 5, k), stored(normal((2, 5, k)), dtype)
                    tensors[f"layers.{i}.values"] = dtype, (2, 5, v), stored(normal((2, 5, v)), dtype)
            tensors["tokens"] = "I64", (3,), bytes(range(24))
            tensors["empty.keys"] = tensors["empty.values"] = "F16", (0, 64), b""
            path = self.dir / f"input.{group}.safetensors"
            write(path, tensors, {"note": "made by cases.py"})
            inputs.append(path)
        n = -1
        for i, key in enumerate(KEYS):
            for j, value in enumerate(VALUES):
                if (i + j) % 2:
                    continue
                n += 1
                args = ["--k", key, "--v", value, "--scale-type", TYPES[n % 3], "--policy", ("finite", "compat")[n % 2],
                        "--scale", ("rms", "search")[n % 5 // 4]]
                name = f"kv-{key}-{value}"
                group = (32, 64)[n // 2 % 2]
                self.run("kv", "encode", inputs[n // 2 % 2], self.dir / f"{name}.packed.safetensors", "--group", group, *args)
                self.kv_decode(name, (TYPES[n // 3 % 3],))
                if n % 14 == 0:
                    name = f"kv-real-{n}"
                    self.run("kv", "encode", minilm, self.dir / f"{name}.packed.safetensors", *args, "--skip", 3)
                    self.kv_decode(name)
                if n % 7 == 1:
                    name = f"kv-sample-{n}"
                    self.run("kv", "encode", sample, self.dir / f"{name}.packed.safetensors", *args,
                             "--keys", r"^(keys)\.", "--values", r"^(values)\.")
                    self.kv_decode(name)

    def row_codes_encoded(self):
        """Row codes with centres and raw tokens, of the command's choice and of others, and of given centres."""
        minilm = ROOT / "testdata/kv_minilm.safetensors"
        self.run("kv", "encode", minilm, self.dir / "row-default.packed.safetensors")
        self.kv_decode("row-default")
        codes = ("r2", "r3", "r4", "r5", "t2", "t3", "t4")
        tensors = {}
        for i, (d, dv, dtype) in enumerate(((32, 64, "F32"), (96, 160, "F16"), (256, 32, "BF16"), (224, 512, "F32"))):
            for part, dim in (("keys", d), ("values", dv)):
                x = normal((2, 2, 11, dim)) + rng.standard_normal(dim) * 3
                raw = rng.choice([np.nan, np.inf, -np.inf, 65504, 1e30, 7], x.shape)
                x[..., :2, :], x[..., -3:, :] = raw[..., :2, :], raw[..., -3:, :]
                tensors[f"layers.{i}.{part}"] = dtype, x.shape, stored(x, dtype)
        tensors["empty.keys"] = tensors["empty.values"] = "F16", (2, 0, 64), b""
        path = self.dir / "input.rows.safetensors"
        write(path, tensors, {})
        for i, code in enumerate(codes):
            name = f"row-{code}"
            self.run("kv", "encode", path, self.dir / f"{name}.packed.safetensors", "--key-type", code, "--value-type", codes[i * 3 % 7],
                     "--centred", ("keys", "values", "both", "none")[i % 4], "--raw-first", (2, 3)[i % 2], "--raw-last", (3, 9)[i // 2 % 2],
                     "--policy", ("finite", "compat")[i // 3 % 2])
            self.kv_decode(name)
        self.run("kv", "encode", path, self.dir / "row-mixed.packed.safetensors", "--key-type", "q4_0", "--value-type", "t3", "--raw-first", 2, "--raw-last", 3)
        self.kv_decode("row-mixed")

    def row_snapshot(self):
        """Random codes, scale codes, centres and raw tokens, with and without a row code."""
        layers, tensors = [], {}
        kinds = [("levels", b, c) for b in (2, 3, 4, 5) for c in (True, False)] + [("trellis", b, c) for b in (2, 3, 4) for c in (True, False)]
        first, last = 2, 3
        for i, (key, value) in enumerate(zip(kinds, kinds[5:] + kinds[:5])):
            own = ("F16", "BF16", "F32")[i % 3]
            lead, tokens = [[2, 1 + i % 2 if i else 0], [3], []][i % 3], (4, 9, 1)[i // 3 % 3]
            coded = max(0, tokens - first - last)
            f = min(first, tokens)
            leads = int(np.prod(lead, dtype=object))
            layer = {}
            for part, d, (code, bits, centred) in (("keys", (32, 64, 96, 224)[i % 4], key), ("values", (128, 32, 160)[i % 3], value)):
                name = f"layers.{i}.{part}"
                layer[part] = {"name": name, "dtype": own, "shape": lead + [tokens, d], "bits": bits, "code": code}
                if centred:
                    layer[part]["centred"] = True
                    tensors[name + ".mean"] = "F16", lead + [1, d], stored(rng.standard_normal((leads, d)) * 100, "F16")
                    tensors[name + ".gain"] = "F16", lead + [1, d], stored(np.exp2(rng.uniform(-24, 15.9, (leads, d))), "F16")
                scales = rng.integers(0, 248, leads * coded, np.uint8)
                tensors[name + ".scales"] = "U8", lead + [coded, 1], np.where(rng.integers(0, 5, scales.shape) == 0, 0, scales).astype(np.uint8).tobytes()
                tensors[name + ".codes"] = "U8", lead + [coded, d * bits // 8], rng.integers(0, 256, leads * coded * d * bits // 8, np.uint8).tobytes()
                for suffix, n in ((".first", f), (".last", tokens - f - coded)):
                    size = {"F32": 4, "F16": 2, "BF16": 2}[own]
                    tensors[name + suffix] = own, lead + [n, d], rng.integers(0, 256, leads * n * d * size, np.uint8).tobytes()
            layers.append(layer)
        layers[0]["keys"]["signed"] = layers[1]["values"]["signed"] = False
        layers[1]["keys"]["centred"] = None
        layers[3]["keys"]["centred"] = False
        kv = {"group": 64, "scale_type": "bf16", "policy": "finite", "scale": "search", "sign_seed": 42, "raw_first": first, "raw_last": last,
              "layers": layers, "raw": []}
        return tensors, kv

    def row_codes_written(self):
        tensors, kv = self.row_snapshot()
        for policy in ("finite", "compat"):
            kv["policy"] = policy
            write(self.dir / f"row-random-{policy}.packed.safetensors", tensors, self.metadata(kv, "2"))
            self.kv_decode(f"row-random-{policy}")
        # Version 2 does not ask for what it adds.
        plain, old = self.snapshot(32, "f16", "finite")
        old["raw_last"] = None
        write(self.dir / "row-plain.packed.safetensors", plain, self.metadata(old, "2"))
        self.kv_decode("row-plain")

    def row_codes_bad(self):
        tensors, kv = self.row_snapshot()
        i = next(i for i, l in enumerate(kv["layers"]) if l["keys"]["code"] == "trellis" and l["keys"].get("centred")
                 and l["keys"]["bits"] == 4 and l["keys"]["shape"][-2] > 5 and 0 not in l["keys"]["shape"])
        name = f"layers.{i}.keys"

        def part(key, to):
            def f(t, d):
                if to is None:
                    del d["layers"][i]["keys"][key]
                else:
                    d["layers"][i]["keys"][key] = to
            return f

        def top(key, to):
            def f(t, d):
                d[key] = to
            return f

        def drop(suffix):
            def f(t, d):
                del t[name + suffix]
            return f

        def put(suffix, at, data):
            def f(t, d):
                dtype, shape, old = t[name + suffix]
                t[name + suffix] = dtype, shape, old[:at] + data + old[at + len(data):]
            return f

        def retype(suffix, dtype):
            def f(t, d):
                t[name + suffix] = dtype, *t[name + suffix][1:]
            return f

        changes = [
            part("code", "viterbi"), part("code", "Levels"), part("code", 1), part("code", None), part("bits", 5), part("bits", 8), part("centred", False),
            part("centred", 1), part("centred", None), part("signed", True), part("dtype", "F16" if kv["layers"][i]["keys"]["dtype"] != "F16" else "F32"),
            top("raw_first", 1), top("raw_first", -1), top("raw_first", 2**31), top("raw_first", 2.0), top("raw_first", None), top("raw_last", 0), top("raw_last", "3"), top("rawFirst", 1),
            drop(".mean"), drop(".gain"), drop(".first"), drop(".last"), drop(".scales"), retype(".mean", "BF16"), retype(".scales", "I8"),
            put(".scales", 1, b"\xf8"), put(".scales", 0, b"\xff"), put(".mean", 2, b"\x00\x7c"), put(".mean", 4, b"\x01\x7e"),
            put(".gain", 2, b"\x00\x7c"), put(".gain", 0, b"\0\0"), put(".gain", 0, b"\0\x80"), put(".gain", 0, b"\0\xbc"),
        ]
        for n, f in enumerate(changes):
            t, d = dict(tensors), copy.deepcopy(kv)
            f(t, d)
            path = self.dir / f"row-{n}.bad.safetensors"
            write(path, t, self.metadata(d, "2"))
            self.refused("kv", path)
        for n, version in enumerate(("1", "3", "2.0", "")):
            path = self.dir / f"row-version-{n}.bad.safetensors"
            write(path, tensors, self.metadata(kv, version))
            self.refused("kv", path)

    def snapshot(self, group, scale_type, policy):
        """Random codes with random scales: NaN, infinities and subnormals of f16 among them."""
        dtype = scale_type.upper()
        tensors, layers = {}, []
        for i, (key, v, dim) in enumerate(zip((*KEYS, "q8_0", "uint2", "q4_0"), VALUES * 2, VALUE_DIMS[1::2])):
            bits, signed = KEYS[key]
            own = ("F16", "BF16", "F32")[i % 3]
            lead = [2, i]  # the first layer is empty
            layer = {}
            for part, d, b in (("keys", 128, bits), ("values", dim, v)):
                name = f"layers.{i}.{part}"
                n = 2 * i * d // group
                layer[part] = {"name": name, "dtype": own, "shape": lead + [d], "bits": b}
                for suffix in (".scales", ".zeros")[:1 + (part == "keys")]:
                    x = rng.standard_normal(n) * np.exp2(rng.integers(-20, 14, n))
                    x = np.where(rng.integers(0, 16, n) == 0, rng.choice([np.inf, -np.inf, np.nan, 65504, 0, -0.0], n), x)
                    tensors[name + suffix] = dtype, lead + [d // group], stored(x, dtype)
                codes = rng.integers(0, 256, 2 * i * d * b // 8, np.uint8).tobytes()
                tensors[name + ".codes"] = "I8" if part == "keys" and signed else "U8", lead + [d * b // 8], codes
                if part == "keys" and signed:
                    layer[part]["signed"] = True
            layers.append(layer)
        layers[0]["values"]["signed"] = None
        layers[1]["values"]["signed"] = False
        tensors["other"] = "BOOL", [], b"\1"
        kv = {"group": group, "scale_type": scale_type, "policy": policy, "scale": "rms", "sign_seed": 42,
              "layers": layers, "raw": ["other"]}
        return tensors, kv

    @staticmethod
    def metadata(kv, version="1"):
        text = kv if isinstance(kv, str) else json.dumps(kv)
        return {"turbotrellis.format": "kv-snapshot", "turbotrellis.version": version, "turbotrellis.kv": text, "own": "é"}

    def kv_written(self):
        for n, scale_type in enumerate(TYPES):
            for m, policy in enumerate(("finite", "compat")):
                tensors, kv = self.snapshot((32, 64)[(n + m) % 2], scale_type, policy)
                name = f"kv-random-{scale_type}-{policy}"
                write(self.dir / f"{name}.packed.safetensors", tensors, self.metadata(kv))
                self.kv_decode(name)

    def kv_bad(self):
        tensors, kv = self.snapshot(32, "f16", "finite")

        def change(*path, to):
            def f(t, d, m):
                for p in path[:-1]:
                    d = d[p]
                if to is None:
                    del d[path[-1]]
                else:
                    d[path[-1]] = to
            return f

        def drop(t, d, m):
            del t["layers.3.keys.zeros"]

        def spare(t, d, m):
            t["spare"] = "U8", [1], b"\0"

        def retyped(t, d, m):
            t["layers.3.values.codes"] = ("I8", *t["layers.3.values.codes"][1:])

        def reshaped(t, d, m):
            dtype, shape, data = t["layers.3.values.codes"]
            t["layers.3.values.codes"] = dtype, shape[::-1], data

        def text(f):
            def g(t, d, m):
                m["turbotrellis.kv"] = f(m["turbotrellis.kv"])
            return g

        def meta(key, to):
            def f(t, d, m):
                m[key] = to
            return f

        keys = ("layers", 3, "keys")
        changes = [
            change("group", to=16), change("group", to=None), change("group", to=32.0), change("group", to="32"),
            change("scale_type", to="F16"), change("scale_type", to=None), change("policy", to="loose"), change("policy", to=None),
            change("scale", to=None), change("scale", to="refit"), change("sign_seed", to=43), change("sign_seed", to=None),
            change("more", to=1), change("layers", to={}), change("layers", to=None), change("layers", to=[None]), change("raw", to=None), change("raw", to=[1]), change("raw", to=[]),
            change("raw", to=["other", "other"]), change("raw", to=["other", "absent"]), change("layers", 3, "keys", to=None),
            change("layers", 3, "raw", to=1), change(*keys, "name", to="absent"), change(*keys, "name", to=7),
            change(*keys, "dtype", to="F64"), change(*keys, "dtype", to="BF16"), change(*keys, "shape", to=[2, 3]),
            change(*keys, "shape", to=[128]), change(*keys, "shape", to=[2, -3, 128]), change(*keys, "shape", to=[2**57, 2, 128]),
            change(*keys, "bits", to=6), change(*keys, "bits", to=None), change(*keys, "signed", to=True), change(*keys, "signed", to=1),
            change("layers", 3, "values", "signed", to=True),
            change(*keys, "Bits", to=4), change("layers", 3, "values", "shape", to=[2, 3, 100]),
            change("layers", 3, "values", "name", to="layers.2.values"), change("layers", 3, to=kv["layers"][2]),
            drop, spare, retyped, reshaped, text(lambda s: s + "{}"), text(lambda s: s[:-1]), text(lambda s: s.replace('"group"', '"Group"')),
            text(lambda s: '{"group": 32, ' + s[1:]), text(lambda s: ""),
            text(lambda s: s.replace('"group": 32', '"group": null')), text(lambda s: s.replace('"bits": 3', '"bits": 3, "bits": 3')),
            meta("turbotrellis.version", "3"), meta("turbotrellis.version", "1 "), meta("turbotrellis.format", "kv"),
        ]
        for i, f in enumerate(changes):
            t, d = dict(tensors), copy.deepcopy(kv)
            f(t, d, {"turbotrellis.kv": ""})
            m = self.metadata(d)
            f(dict(tensors), copy.deepcopy(kv), m)
            path = self.dir / f"kv-{i}.bad.safetensors"
            write(path, t, m)
            self.refused("kv", path)

    # --- trellis ---

    def trellis_encoded(self):
        real = ROOT / "testdata/weights_minilm.safetensors"
        matrices = {}
        for i, shape in enumerate(((12, 96), (96, 12), (64, 32), (33, 128))):
            w = normal(shape)
            w[3] = 0
            dtype = ("F32", "F16", "BF16", "F32")[i]
            matrices[f"m.{i}.weight"] = dtype, shape, stored(w, dtype)
        matrices["norm"] = "F32", (3,), bytes(12)
        path = self.dir / "input.weights.safetensors"
        write(path, matrices, {"format": "pt"})
        for k in range(1, 9):
            for n, code in enumerate(("1mad", "3inst", "rand")):
                if n != k % 3 and k > 4:
                    continue
                name = f"trellis-{k}-{code}"
                self.run("trellis", "encode", path, self.dir / f"{name}.packed.safetensors", "--tensors", "^m", "--block", 32,
                         "--k", k, "--code", code, "--scale", ("rms", "refit")[k % 2], "--policy", ("finite", "compat")[n % 2])
                self.trellis_decode(name, ".safetensors")
        self.run("trellis", "encode", real, self.dir / "trellis-real.packed.safetensors", "--tensors", "output.dense.weight$", "--k", 2)
        self.trellis_decode("trellis-real", ".safetensors")
        self.directory(matrices)

    def directory(self, matrices):
        """A model in shards with an entry of another program."""
        src = self.dir / "input.model"
        (src / "sub").mkdir(parents=True)
        split = {"a-1.safetensors": list(matrices)[:2], "a-2.safetensors": list(matrices)[2:]}
        for file, names in split.items():
            write(src / file, {n: matrices[n] for n in names}, {"format": "pt"})
        (src / "config.json").write_text('{\n  "hidden": 1.50,\n  "clip": Infinity,\n  "quantization": null,\n  "list": [1,  2]\n}\n')
        (src / "sub/vocab.txt").write_text("a\n")
        (src / "model.safetensors.index.json").write_text(json.dumps({
            "metadata": {"total_size": sum(len(t[2]) for t in matrices.values())},
            "weight_map": {n: f for f, names in split.items() for n in names}}, indent=2))
        self.run("trellis", "encode", src, self.dir / "trellis-shards.packed", "--tensors", r"\.[02]\.", "--block", 32, "--k", 3)
        self.trellis_decode("trellis-shards", "")

    def coded(self):
        """Random words in every setting that the format has."""
        tensors, entries, metadata = {}, {}, {"format": "pt"}
        n = 0
        for code in ("1mad", "3inst", "rand"):
            for k in range(1, 9):
                for L in sorted({k + 1, 9 + k // 2, 12, 16}):
                    axis, interleaved, T = n % 2, n // 2 % 2, (32, 64, 96, 128)[n % 4] if k < 8 else (4, 12, 64)[n % 3]
                    rows, blocks, words = 1 + n % 5, 2 + 2 * (n % 2) + (0 if interleaved else n % 3), T * k // 32
                    base = f"b.{n}"
                    shape = [blocks // 2, rows, 2 * words] if interleaved else [rows, blocks * words]
                    tensors[base + ".weight"] = "U32", shape, rng.integers(0, 256, 4 * rows * blocks * words, np.uint8).tobytes()
                    scales = rng.standard_normal(rows) * np.exp2(rng.integers(-24, 14, rows))
                    scales[n % rows] = (1, np.inf, np.nan, 65504, 0)[n % 5]
                    tensors[base + ".scales"] = "F16", [rows], stored(scales, "F16")
                    entries[base] = {"mode": "trellis", "bits": k, "group_size": T, "trellis": {"L": L, "code": code, "axis": axis}}
                    n += 1
        tensors["empty.weight"] = "U32", [0, 12], b""
        tensors["empty.scales"] = "F16", [0], b""
        entries["empty"] = {"mode": "trellis", "bits": 3, "group_size": 32, "trellis": {"L": 12, "code": "1mad", "axis": 1}}
        entries["other"] = {"mode": "affine", "bits": 4}
        entries["bits"], entries["null"] = 4, None
        tensors["plain"], tensors["narrow"] = ("U8", [3], b"abc"), ("F6_E2M3", [2, 4], b"abcdef")
        return tensors, entries, metadata

    def trellis_written(self):
        tensors, entries, metadata = self.coded()
        text = json.dumps(entries).replace('"mode": "affine"', '"mode": "affine", "x": 1, "x": 1')
        write(self.dir / "trellis-random.packed.safetensors", tensors, metadata | {"quantization": text})
        self.trellis_decode("trellis-random", ".safetensors")

    def trellis_bad(self):
        tensors, entries, metadata = self.coded()
        good = {"mode": "trellis", "bits": 3, "group_size": 32, "trellis": {"L": 12, "code": "1mad", "axis": 1}}
        base = next(b for b, e in entries.items() if type(e) is dict and e["mode"] == "trellis" and e["trellis"]["L"] == 12 and e["bits"] == 3)

        def refuse(name, entry=None, **changed):
            e = {**entries, base: entry if entry is not None else entries[base]}
            t = {k: v for k, v in {**tensors, **changed}.items() if v is not None}
            path = self.dir / f"trellis-{name}.bad.safetensors"
            write(path, t, metadata | {"quantization": json.dumps(e)})
            self.refused("trellis", path)

        i = 0
        for key in ("bits", "group_size", "trellis"):
            refuse(f"lacks-{key}", {k: v for k, v in entries[base].items() if k != key})
        for key in ("L", "code", "axis"):
            e = copy.deepcopy(entries[base])
            del e["trellis"][key]
            refuse(f"lacks-{key}", e)
        for key, value in (("bits", 0), ("bits", 9), ("bits", "3"), ("bits", 3.0), ("group_size", 33), ("group_size", 0), ("group_size", 2**24 + 32),
                           ("more", 1), ("Bits", 3)):
            refuse(f"field-{(i := i + 1)}", {**entries[base], key: value})
        for key, value in (("L", 3), ("L", 17), ("code", "3inst-f16"), ("code", "1MAD"), ("code", 1), ("axis", 2), ("axis", -1), ("more", 1)):
            refuse(f"field-{(i := i + 1)}", {**entries[base], "trellis": {**entries[base]["trellis"], key: value}})
        dtype, shape, data = tensors[base + ".weight"]
        scales = tensors[base + ".scales"]
        for w in (None, ("I32", shape, data), (dtype, [len(data) // 4], data), (dtype, [1, *shape, 1], data)):
            refuse(f"weight-{(i := i + 1)}", **{base + ".weight": w})
        for s in (None, ("BF16", *scales[1:]), ("F16", [*scales[1], 1], scales[2]), ("F16", [scales[1][0] + 1], scales[2] + b"\0\0")):
            refuse(f"scales-{(i := i + 1)}", **{base + ".scales": s})
        text = json.dumps(entries)
        path = self.dir / "trellis-twice.bad.safetensors"
        write(path, tensors, metadata | {"quantization": json.dumps({base: good})[:-1] + ", " + text[1:]})
        self.refused("trellis", path)
        path = self.dir / "trellis-entry-twice.bad.safetensors"
        write(path, tensors, metadata | {"quantization": text.replace('"axis": 1}', '"axis": 1, "axis": 1}')})
        self.refused("trellis", path)
        self.directories_bad()

    def directories_bad(self):
        src = self.dir / "trellis-shards.packed"
        index = json.loads((src / "model.safetensors.index.json").read_text())
        changes = {
            "config": {"config.json": None}, "index": {"model.safetensors.index.json": None},
            "shard": {"a-2.safetensors": None}, "outside": {"model.safetensors.index.json": {"weight_map": {"a": "../a.safetensors"}}},
            "map": {"model.safetensors.index.json": {"weight_map": {}}},
            "place": {"model.safetensors.index.json": {"weight_map": {n: "a-1.safetensors" for n in index["weight_map"]}}},
            "list": {"config.json": []}, "quantization": {"config.json": {"quantization": []}}, "config-twice": {"config.json": '{"a": 1, "a": 1}'},
            "map-twice": {"model.safetensors.index.json": '{"weight_map": ' + json.dumps(index["weight_map"])[:-1] + ', "norm": "a-2.safetensors"}}'},
        }
        for name, files in changes.items():
            to = self.dir / f"trellis-dir-{name}.bad"
            to.mkdir()
            for f in src.iterdir():
                if f.is_file() and f.name not in files:
                    (to / f.name).write_bytes(f.read_bytes())
            for f, v in files.items():
                if v is not None:
                    (to / f).write_text(v if isinstance(v, str) else json.dumps(v))
            self.refused("trellis", to)

    # --- the container ---

    def container_bad(self):
        kv = self.metadata({"group": 32, "scale_type": "f16", "policy": "finite", "scale": "rms", "sign_seed": 42, "layers": [],
                            "raw": ["a", "b"]})
        tensors = {"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}, "b": {"dtype": "F16", "shape": [2], "data_offsets": [4, 8]}}
        meta = json.dumps(kv)

        def text(a=None, extra="", **fields):
            t = copy.deepcopy(tensors)
            t["b"] |= fields
            t["b"] = {k: v for k, v in t["b"].items() if v != "absent"}
            return '{"__metadata__": ' + meta + "".join(f', "{k}": {json.dumps(v)}' for k, v in t.items()) + extra + "}"

        def file(header, payload=b"12345678", n=None):
            header = header if isinstance(header, bytes) else header.encode()
            return struct.pack("<Q", len(header) if n is None else n) + header + payload

        good = file(text())
        path = self.dir / "container.packed.safetensors"
        path.write_bytes(good)
        self.kv_decode("container")
        bad = [
            good[:6], good[:100], file(text(), n=2**40), file(text(), n=200_000_000), file(" " + text()), file(text() + "x"),
            file(text().encode().replace(b'"b"', b'"\xff"')), file(text().replace('"b"', r'"\ud800"')),
            file(text(extra=', "a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}')),
            file(text(more=1)), file(text(shape="absent")), file(text(dtype="absent")), file(text(data_offsets="absent")),
            file(text(dtype="F17")), file(text(dtype="F4", shape=[7])), file(text(shape=[2.0])), file(text(shape=[-2])), file(text(shape="2")), file(text(shape=[3])),
            file(text(shape=[0, 2**62, 2**62], data_offsets=[8, 8])), file(text(data_offsets=[4, 8, 8])), file(text(data_offsets=[8, 4])),
            file(text(data_offsets=[3, 7])), file(text(data_offsets=[4, 12])), file(text(), payload=b"123456789"), file(text(), payload=b"1234567"),
            file(text(data_offsets=[5, 9]), payload=b"123456789"), file(text().replace('"own": "', '"own": 1, "x": "')), file("[]"), file(""),
        ]
        for i, b in enumerate(bad):
            path = self.dir / f"container-{i}.bad.safetensors"
            path.write_bytes(b)
            self.refused("kv", path)


def main():
    command, folder = str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True)
    c = Cases(command, folder)
    c.kv_encoded()
    c.kv_written()
    c.kv_bad()
    c.row_codes_encoded()
    c.row_codes_written()
    c.row_codes_bad()
    c.trellis_encoded()
    c.trellis_written()
    c.trellis_bad()
    c.container_bad()


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        main()
