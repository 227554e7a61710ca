"""Reads KV snapshots and trellis-coded models with numpy.

    python reader.py check DIR

It was written from docs/numerics.md and docs/format.md alone and shares no code with
the Go packages, so that it shows whether the two pages are enough. "§" is a section of
docs/numerics.md.

check compares, for every NAME in DIR, NAME.packed (a directory) or
NAME.packed.safetensors, decoded here, with NAME.TYPE or NAME.TYPE.safetensors, decoded
by turbotrellis; TYPE is f32, f16, bf16, or own for the types that the tensors had. It
also checks that every NAME.bad or NAME.bad.safetensors is refused.
"""
import json
import pathlib
import struct
import sys

import numpy as np

F = np.float32
TABLES = json.loads((pathlib.Path(__file__).resolve().parents[3] / "docs/tables.json").read_text())
BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
        "F8_E5M2FNUZ": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64,
        "C64": 64}


class Refused(Exception):
    """A file that a reader must refuse."""


def need(condition, why):
    if not condition:
        raise Refused(why)


# --- §0, §1: numbers -----------------------------------------------------------------

def widen(data, dtype):
    """Little-endian bytes as f32."""
    if dtype == "F32":
        return np.frombuffer(data, "<f4").astype(F)
    if dtype == "F16":
        return np.frombuffer(data, "<f2").astype(F)
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(F)


def out(x, dtype, finite=False):
    """x rounded once, as little-endian bytes; finite saturates f16."""
    if dtype == "F32":
        return x.astype("<f4").tobytes()
    if dtype == "F16":
        h = x.astype(np.float16)
        if finite:
            h = np.where(np.isinf(h) & np.isfinite(x), np.copysign(np.float16(65504), h), h)
        return h.astype("<f2").tobytes()
    bits = x.view(np.uint32)
    rounded = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
    return np.where(np.isnan(x), 0x7FC0, rounded).astype("<u2").tobytes()


def f32_table(t):
    return np.array([int(b, 16) for b in t["bits"]], np.uint32).view(F)


# --- §3: rotation --------------------------------------------------------------------

MASK = 0xFFFFFFFF


def block(c0, c1, key=(0, 42)):
    ks = key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA
    a, b = (c0 + ks[0]) & MASK, (c1 + ks[1]) & MASK
    for i in range(5):
        for r in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
            a = (a + b) & MASK
            b = (b << r | b >> 32 - r) & MASK ^ a
        a = (a + ks[(i + 1) % 3]) & MASK
        b = (b + ks[(i + 2) % 3] + i + 1) & MASK
    return a, b


def signs(d):
    h = (d + 1) // 2
    words = [0] * d
    for i in range(d // 2):
        words[i], words[h + i] = block(i, h + i)
    if d % 2:
        words[h - 1] = block(h - 1, 0)[0]
    return np.array([-1 if w >= 2**31 - 64 else 1 for w in words], F)


def factor(d):
    """m and n of d = m·n, or None."""
    for m in (1, 12, 20, 28):
        n = d // m
        if d % m == 0 and n > 0 and n & n - 1 == 0:
            return (m, n) if n <= 8192 else None
    return None


def rotate_back(x):
    """Rows of f32, rotated back."""
    rows, d = x.shape
    m, n = factor(d)
    x = x.reshape(rows, m, n).copy()
    h = 1
    while h < n:
        pairs = x.reshape(rows, m, n // (2 * h), 2, h)
        u, v = pairs[:, :, :, 0], pairs[:, :, :, 1]
        x = np.stack((u + v, u - v), 3).reshape(rows, m, n)
        h *= 2
    if m > 1:
        matrix = np.array([[1 if s == "+" else -1 for s in row] for row in TABLES["matrices"][str(m)]], F).T
        y = np.zeros_like(x)
        for c in range(m):
            y = y + matrix[None, :, c, None] * x[:, None, c]
        x = y
    return x.reshape(rows, d) * F(1 / np.sqrt(np.float64(d))) * signs(d)


# --- §5: packing ---------------------------------------------------------------------

def unpack(data, rows, n, bits):
    stream = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").reshape(rows, n, bits)
    return stream @ (1 << np.arange(bits))


# --- §6: trellis ---------------------------------------------------------------------

def one_mad(s):
    x = s * np.uint32(34038481) + np.uint32(76625530)
    y = sum((x >> np.uint32(i) & np.uint32(255)).astype(np.int32) for i in (0, 8, 16, 24)) - 510
    return y.astype(F) / F(147.800537109375)


def three_inst(s):
    x = (s * np.uint32(89226354) + np.uint32(64248484) & np.uint32(0x8FFF8FFF)) ^ np.uint32(0x3B603B60)
    hi, lo = (x >> np.uint32(16)).astype(np.uint16), x.astype(np.uint16)
    return hi.view(np.float16).astype(F) + lo.view(np.float16).astype(F)


def rand(s):
    def u(n):
        z = np.uint32(0xC0FFEE) + n * np.uint32(0x9E3779B9)
        z = (z ^ z >> np.uint32(16)) * np.uint32(0x21F0AAAD)
        z = (z ^ z >> np.uint32(15)) * np.uint32(0x735A2D97)
        return ((z ^ z >> np.uint32(15)).astype(np.float64) + 0.5) / 2.0**32

    p = s & ~np.uint32(1)
    radius = np.sqrt(-2 * np.log(u(p + np.uint32(1))))
    angle = 2 * np.pi * u(p + np.uint32(2))
    return (radius * np.where(s % 2 == 0, np.cos(angle), np.sin(angle))).astype(F)


CODES = {"1mad": one_mad, "3inst": three_inst, "rand": rand}


def states(data, k, T, L):
    """The states of packed blocks, [blocks, T]."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").reshape(-1, T * k)
    at = ((T - 1 - np.arange(T)) * k)[:, None] + np.arange(L)[None]
    return bits[:, at % (T * k)] @ (1 << np.arange(L))


# --- format.md: JSON and the container -----------------------------------------------

class Object(dict):
    """A JSON object. twice says that a member occurs twice; the last one counts."""

    def __init__(self, members):
        super().__init__(members)
        self.twice = len(self) < len(members)


def parse(text, python=False):
    """Any JSON value; python allows NaN and infinities."""
    def refuse(name):
        raise Refused(f"{name} is not JSON")

    try:
        v = json.loads(text, object_pairs_hook=Object, parse_constant=float if python else refuse)
        json.dumps(v, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as e:  # UnicodeEncodeError, half a surrogate pair, is a ValueError
        raise Refused(f"JSON: {e}") from None
    return v


def once(v, deep=False):
    """Refuses an object, and all within it if deep, in which a member occurs twice."""
    if isinstance(v, Object):
        need(not v.twice, "a member occurs twice")
    if deep and isinstance(v, (dict, list)):
        for x in v.values() if isinstance(v, dict) else v:
            once(x, True)
    return v


def integer(v):
    return type(v) is int


def integers(v):
    return type(v) is list and all(integer(n) and n >= 0 for n in v)


class Tensor:
    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, shape, data


class File:
    """A safetensors file: tensors by name, and metadata."""

    def __init__(self, path):
        raw = pathlib.Path(path).read_bytes()
        need(len(raw) >= 8, "too short")
        n = struct.unpack("<Q", raw[:8])[0]
        need(n <= 100_000_000 and n <= len(raw) - 8, "the header is too long")
        need(raw[8:9] == b"{", "no header")
        try:
            text = raw[8:8 + n].decode()
        except UnicodeDecodeError:
            raise Refused("the header is not UTF-8") from None
        header, payload = once(parse(text), deep=True), raw[8 + n:]
        self.metadata = header.pop("__metadata__", None) or {}
        need(isinstance(self.metadata, dict) and all(type(v) is str for v in self.metadata.values()), "metadata")
        self.tensors, ranges = {}, []
        for name, t in header.items():
            need(isinstance(t, dict) and set(t) == {"dtype", "shape", "data_offsets"}, f"{name}: fields")
            need(type(t["dtype"]) is str and t["dtype"] in BITS, f"{name}: dtype")
            need(integers(t["shape"]), f"{name}: shape")
            need(integers(t["data_offsets"]) and len(t["data_offsets"]) == 2, f"{name}: offsets")
            size = whole = BITS[t["dtype"]]
            for v in t["shape"]:
                size, whole = size * v, whole * (v or 1)
            need(whole < 2**66 and size % 8 == 0, f"{name}: size")
            lo, hi = t["data_offsets"]
            need(lo <= hi <= len(payload) and hi - lo == size // 8, f"{name}: offsets")
            ranges.append((lo, hi))
            self.tensors[name] = Tensor(t["dtype"], t["shape"], payload[lo:hi])
        end = 0
        for lo, hi in sorted(ranges):
            need(lo == end, "tensors overlap or leave a gap")
            end = hi
        need(end == len(payload), "bytes without a tensor")


def members(v, what, required, optional=()):
    """A strict object; absent members are None."""
    need(isinstance(v, dict), f"{what} is not an object")
    once(v)
    need(set(v) <= set(required) | set(optional), f"{what} has unknown members")
    v = {k: v.get(k) for k in (*required, *optional)}
    need(all(v[k] is not None for k in required), f"{what} lacks a member")
    return v


# --- format.md: KV snapshot ----------------------------------------------------------

class Snapshot:
    def __init__(self, path):
        f = File(path)
        need(f.metadata.get("turbotrellis.format") == "kv-snapshot", "format")
        version = f.metadata.get("turbotrellis.version")
        need(version in ("1", "2"), "version")
        self.two = version == "2"
        need("turbotrellis.kv" in f.metadata, "no description")
        d = members(parse(f.metadata["turbotrellis.kv"]), "turbotrellis.kv",
                    ("group", "scale_type", "policy", "scale", "sign_seed", "layers", "raw"), ("raw_first", "raw_last") if self.two else ())
        need(integer(d["group"]) and d["group"] in (32, 64), "group")
        need(d["scale_type"] in ("f16", "bf16", "f32"), "scale_type")
        need(d["policy"] in ("finite", "compat"), "policy")
        need(d["scale"] in ("rms", "search"), "scale")
        need(integer(d["sign_seed"]) and d["sign_seed"] == 42, "sign_seed")
        self.first, self.last = (0 if d.get(k) is None else d[k] for k in ("raw_first", "raw_last"))
        need(all(integer(n) and 0 <= n < 2**31 for n in (self.first, self.last)), "raw_first or raw_last")
        need(type(d["layers"]) is list, "layers")
        need(type(d["raw"]) is list and all(type(n) is str for n in d["raw"]), "raw")
        self.file, self.group, self.scale_type = f, d["group"], d["scale_type"].upper()
        self.finite = d["policy"] == "finite"
        self.metadata = {k: v for k, v in f.metadata.items()
                         if k not in ("turbotrellis.format", "turbotrellis.version", "turbotrellis.kv")}
        self.parts, self.raw, self.decoded = [], d["raw"], {}
        left = set(f.tensors)
        restored = set()
        for layer in d["layers"]:
            layer = members(layer, "layer", ("keys", "values"))
            k, v = self.part(layer["keys"], True), self.part(layer["values"], False)
            need(k["shape"][:-1] == v["shape"][:-1] and k["dtype"] == v["dtype"], "keys and values differ")
            for p in (k, v):
                need(p["name"] not in restored, "described twice")
                restored.add(p["name"])
                for suffix, dtype, tokens, last in self.stored(p):
                    name = p["name"] + suffix
                    need(name in left, f"{name} is missing or belongs to two parts")
                    left.remove(name)
                    t = f.tensors[name]
                    need(t.dtype == dtype and t.shape == p["shape"][:-2] + [tokens, last], f"{name}: dtype or shape")
                self.parts.append(p)
        for name in self.raw:
            need(name not in restored and name in left, f"{name}: missing or described twice")
            restored.add(name)
            left.remove(name)
        need(not left, f"{left} belong to nothing")

    def part(self, v, keys):
        p = members(v, "part", ("name", "dtype", "shape", "bits"), ("signed", "code", "centred") if self.two else ("signed",))
        need(type(p["name"]) is str, "name")
        need(p["dtype"] in ("F32", "F16", "BF16"), "dtype")
        need(integers(p["shape"]) and len(p["shape"]) >= 2, "shape")
        need(p["signed"] is None or type(p["signed"]) is bool, "signed")
        code = p["code"] = p.get("code")
        need(code is None or type(code) is str and code in ("levels", "trellis"), "code")
        need(integer(p["bits"]) and p["bits"] in {None: (2, 3, 4, 5, 8), "levels": (2, 3, 4, 5), "trellis": (2, 3, 4)}[code], "bits")
        need(p.get("centred") is None or type(p["centred"]) is bool, "centred")
        p["keys"], p["signed"], p["centred"] = keys, bool(p["signed"]), bool(p.get("centred"))
        need(not p["signed"] or keys and p["bits"] == 8 and code is None, "signed")
        need(not p["centred"] or code, "centred")
        product, d = 1, p["shape"][-1]
        for n in p["shape"]:
            product *= n or 1
        need(product < 2**57, "shape")
        need(d > 0 and d % (32 if code else self.group) == 0, "head dimension")
        need(keys and not code or factor(d) is not None, "head dimension of rotated rows")
        return p

    def split(self, p):
        """The raw tokens at the beginning, the coded ones and the raw ones at the end."""
        tokens = p["shape"][-2]
        first = min(self.first, tokens)
        last = min(self.last, tokens - first)
        return first, tokens - first - last, last

    def stored(self, p):
        """Suffix, dtype and the last two dimensions of the tensors of a part."""
        d = p["shape"][-1]
        first, n, last = self.split(p)
        if p["code"]:
            yield ".scales", "U8", n, 1
        else:
            yield ".scales", self.scale_type, n, d // self.group
            if p["keys"]:
                yield ".zeros", self.scale_type, n, d // self.group
        yield ".codes", "I8" if p["signed"] else "U8", n, d * p["bits"] // 8
        if p["centred"]:
            yield ".mean", "F16", 1, d
            yield ".gain", "F16", 1, d
        if self.first:
            yield ".first", p["dtype"], first, d
        if self.last:
            yield ".last", p["dtype"], last, d

    def get(self, p, suffix):
        return self.file.tensors[p["name"] + suffix].data

    def decode(self, dtype=None):
        """Tensors by name, parts in the given type or in their own."""
        result = {name: self.file.tensors[name] for name in self.raw}
        for p in self.parts:
            t = dtype or p["dtype"]
            if p["name"] not in self.decoded:
                self.decoded[p["name"]] = (self.row_codes if p["code"] else self.groups)(p).reshape(-1)
            pieces = [out(self.decoded[p["name"]], t, self.finite)]
            for suffix, there in ((".first", self.first), (".last", self.last)):
                data = self.get(p, suffix) if there else b""
                pieces.append(data if t == p["dtype"] else out(widen(data, p["dtype"]), t, self.finite))
            first, n, last = self.split(p)
            size = p["shape"][-1] * BITS[t] // 8
            leads = int(np.prod(p["shape"][:-2], dtype=object))
            coded, before, after = (np.frombuffer(b, np.uint8).reshape(leads, m, size) for b, m in zip(pieces, (n, first, last)))
            result[p["name"]] = Tensor(t, p["shape"], np.concatenate((before, coded, after), 1).tobytes())
        return result

    def groups(self, p):
        """Coded rows of §2 and §4."""
        d, leads = p["shape"][-1], int(np.prod(p["shape"][:-2], dtype=object))
        rows, groups = leads * self.split(p)[1], d // self.group
        scale = widen(self.get(p, ".scales"), self.scale_type).reshape(rows, groups, 1)
        index = unpack(self.get(p, ".codes"), rows, d, p["bits"])
        if p["signed"]:
            index = index.astype(np.uint8).view(np.int8)
        index = index.reshape(rows, groups, self.group)
        if p["keys"]:  # §2
            zero = widen(self.get(p, ".zeros"), self.scale_type).reshape(rows, groups, 1)
            return (index.astype(F) + zero) * scale
        centroids = f32_table(TABLES["lloyd_max"][str(p["bits"])]["centroids"])  # §4
        return rotate_back((centroids[index] * scale).reshape(rows, d))

    def row_codes(self, p):
        """Coded rows of §10."""
        d, leads, n = p["shape"][-1], int(np.prod(p["shape"][:-2], dtype=object)), self.split(p)[1]
        code = np.frombuffer(self.get(p, ".scales"), np.uint8).reshape(leads * n, 1)
        need((code <= 247).all(), "scale code")
        if p["code"] == "trellis":
            f = f32_table(TABLES["row_codes"][str(p["bits"])])
            values = f[states(self.get(p, ".codes"), p["bits"], d, 8)].reshape(leads * n, d)
        else:
            centroids = f32_table(TABLES["lloyd_max"][str(p["bits"])]["centroids"])
            values = centroids[unpack(self.get(p, ".codes"), leads * n, d, p["bits"])]
        scale = (code.astype(np.uint16) * 128).view(np.float16).astype(F)
        x = rotate_back(np.where(code == 0, F(0), values * scale))
        if not p["centred"]:
            return x
        mean, gain = (widen(self.get(p, s), "F16").reshape(leads, 1, d) for s in (".mean", ".gain"))
        need(np.isfinite(mean).all() and np.isfinite(gain).all() and (gain > 0).all(), "mean or gain")
        return x.reshape(leads, n, d) * gain + mean


# --- format.md: trellis weights ------------------------------------------------------

class Coded:
    """One coded matrix."""

    def __init__(self, entry, weight, scales):
        e = members(entry, "entry", ("mode", "bits", "group_size", "trellis"))
        t = members(e["trellis"], "trellis", ("L", "code", "axis"))
        self.k, self.T, self.L, self.code, self.axis = e["bits"], e["group_size"], t["L"], t["code"], t["axis"]
        need(all(map(integer, (self.k, self.T, self.L, self.axis))), "entry: integers")
        need(1 <= self.k <= 8 and self.k < self.L <= 16, "bits or L")
        need(1 <= self.T <= 2**24 and self.T * self.k % 32 == 0, "group_size")
        need(self.code in CODES, "code")
        need(self.axis in (0, 1), "axis")
        need(weight is not None and scales is not None, "a tensor is missing")
        need(weight.dtype == "U32" and scales.dtype == "F16", "dtype")
        words, s = self.T * self.k // 32, weight.shape
        self.interleaved = len(s) == 3
        if self.interleaved:
            need(s[2] == 2 * words, "shape")
            self.rows, self.blocks = s[1], 2 * s[0]
        else:
            need(len(s) == 2 and s[1] % words == 0, "shape")
            self.rows, self.blocks = s[0], s[1] // words
        self.C = self.blocks * self.T
        need(self.rows <= 2**28 and self.C <= 2**28, "size")
        need(scales.shape == [self.rows], "shape of scales")
        self.weight, self.scales, self.weights = weight, scales, None

    def decode(self, dtype):
        if self.weights is None:
            self.weights = self.decode_f32()
        w = self.weights
        return Tensor(dtype, list(w.shape), out(w.reshape(-1), dtype))

    def decode_f32(self):
        """The matrix [out, in]."""
        data, size = self.weight.data, self.T * self.k // 8
        if self.interleaved:
            b = np.frombuffer(data, np.uint8).reshape(self.blocks // 2, self.rows, 2, size)
            data = b.transpose(1, 0, 2, 3).tobytes()
        f = CODES[self.code](np.arange(2**self.L, dtype=np.uint32))
        w = f[states(data, self.k, self.T, self.L)].reshape(self.rows, self.C)
        w = w * widen(self.scales.data, "F16")[:, None]
        return np.ascontiguousarray(w.T) if self.axis == 0 else w


class Model:
    """A coded model: files of tensors by name, and entries."""

    def __init__(self, path):
        path = pathlib.Path(path)
        self.dir = path.is_dir()
        self.config = self.index = None
        if self.dir:
            need((path / "config.json").is_file(), "no config.json")
            self.config = once(parse((path / "config.json").read_bytes(), python=True))
            need(isinstance(self.config, dict), "config.json")
            where = self.list(path)
            q = self.config.get("quantization")
            q = {} if q is None else q
        else:
            self.files = {path.name: File(path)}
            where = dict.fromkeys(self.files[path.name].tensors, path.name)
            q = self.entries_of(self.files[path.name].metadata)
        self.coded, self.where, self.entries = {}, where, q
        need(isinstance(once(q), dict), "quantization is not an object")
        for base, entry in q.items():
            if isinstance(entry, dict) and entry.get("mode") == "trellis":
                self.coded[base] = Coded(entry, self.find(base + ".weight"), self.find(base + ".scales"))

    @staticmethod
    def entries_of(metadata):
        try:
            q = parse(metadata.get("quantization", ""), python=True)
        except Refused:
            return {}
        return q if isinstance(q, dict) else {}

    def list(self, path):
        if not (path / "model.safetensors.index.json").exists():
            need((path / "model.safetensors").is_file(), "no model")
            self.files = {"model.safetensors": File(path / "model.safetensors")}
            return dict.fromkeys(self.files["model.safetensors"].tensors, "model.safetensors")
        self.index = once(parse((path / "model.safetensors.index.json").read_bytes(), python=True))
        need(isinstance(self.index, dict) and isinstance(self.index.get("weight_map"), dict), "weight_map")
        where = once(self.index["weight_map"])
        need(where and all(type(v) is str for v in where.values()), "weight_map")
        self.files = {}
        for name in set(where.values()):
            file = (path / name).resolve()
            need(path.resolve() in file.parents and file.is_file(), f"{name} is missing or outside")
            self.files[name] = File(file)
        need(all(name in self.files[file].tensors for name, file in where.items()), "a tensor is not in its file")
        return where

    def find(self, name):
        return self.files[self.where[name]].tensors[name] if name in self.where else None

    def decode(self, dtype):
        """Tensors by name, those of coded matrices restored."""
        result = {name: t for f in self.files.values() for name, t in f.tensors.items()}
        for base, c in self.coded.items():
            del result[base + ".scales"]
            result[base + ".weight"] = c.decode(dtype)
        return result


# --- check ---------------------------------------------------------------------------

def differing(a, b):
    """The number of elements that differ, NaN being equal to NaN."""
    if a.dtype in ("F32", "F16", "BF16"):
        x, y = widen(a.data, a.dtype), widen(b.data, b.dtype)
        bad = (x.view(np.uint32) != y.view(np.uint32)) & ~(np.isnan(x) & np.isnan(y))
        return int(bad.sum())
    return int(a.data != b.data)


def compare(got, want):
    """Compares tensors by name and returns the number of elements."""
    need(set(got) == set(want), f"tensors {sorted(set(got) ^ set(want))} are in one of the two")
    n = 0
    for name, g in got.items():
        w = want[name]
        need((g.dtype, g.shape) == (w.dtype, w.shape), f"{name}: {g.dtype} {g.shape}, want {w.dtype} {w.shape}")
        bad = differing(g, w)
        need(bad == 0, f"{name}: {bad} elements differ")
        n += len(g.data) * 8 // BITS[g.dtype]
    return n


def without_entries(v, coded):
    """A config or metadata value after its coded entries are removed."""
    rest = {k: x for k, x in v.items() if k not in coded}
    return rest or None


def check_model(m, want):
    """What is not tensors: metadata, config.json, the index."""
    if not m.dir:
        (got,), (w,) = m.files.values(), want.files.values()
        a, b = dict(got.metadata), dict(w.metadata)
        a["quantization"] = without_entries(m.entries, m.coded)
        b["quantization"] = want.entries or None
        need(a == b, "metadata differs")
        return
    a, b = dict(m.config), dict(want.config)
    a["quantization"] = without_entries(m.entries, m.coded)
    need(a == {"quantization": None, **b}, "config.json differs")
    need({f: x.metadata for f, x in m.files.items()} == {f: x.metadata for f, x in want.files.items()}, "metadata differs")
    if m.index is not None:
        scales = {base + ".scales" for base in m.coded}
        need({k: v for k, v in m.where.items() if k not in scales} == want.where, "weight_map differs")


def is_snapshot(path):
    return path.is_file() and b'"turbotrellis.format"' in path.read_bytes()


def check(folder):
    compared = files = refused = 0
    for path in sorted(folder.iterdir()):
        name, _, kind = path.name.removesuffix(".safetensors").rpartition(".")
        if kind == "bad":
            try:
                Snapshot(path).decode() if is_snapshot(path) else Model(path)
            except Refused:
                refused += 1
            else:
                sys.exit(f"{path}: not refused")
        if kind != "packed":
            continue
        source = Snapshot(path) if is_snapshot(path) else Model(path)
        others = [p for p in folder.glob(f"{name}.*") if p.name.removesuffix(".safetensors").rpartition(".")[2] in ("f32", "f16", "bf16", "own")]
        if not others:
            sys.exit(f"{path}: nothing to compare with")
        for other in sorted(others):
            t = other.name.removesuffix(".safetensors").rpartition(".")[2]
            try:
                if isinstance(source, Snapshot):
                    want = File(other)
                    compared += compare(source.decode(None if t == "own" else t.upper()), want.tensors)
                    need(source.metadata == want.metadata, "metadata differs")
                else:
                    want = Model(other)
                    tensors = {name: x for f in want.files.values() for name, x in f.tensors.items()}
                    compared += compare(source.decode(t.upper()), tensors)
                    check_model(source, want)
            except Refused as e:
                sys.exit(f"{other}: {e}")
            files += 1
    print(f"reader: {compared} elements equal in {files} files, {refused} bad files refused")
    if compared == 0 or refused == 0:
        sys.exit("reader: nothing was compared or refused")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "check":
        sys.exit(__doc__)
    with np.errstate(all="ignore"):
        check(pathlib.Path(sys.argv[2]))
