"""A model of the KV codec, docs/numerics.md §1 to §5, in numpy.

It is written from that page and knows nothing of the Go code. Every numpy call
on float32 arrays is one operation rounded once. Arrays are [rows, d].
"""
import json
import pathlib

import numpy as np

F = np.float32
EPS = F(1e-8)
TABLES = json.loads((pathlib.Path(__file__).parent.parent / "tables.json").read_text())


def hexes(words):
    return np.array([int(w, 16) for w in words], np.uint32).view(F)


CENTROIDS = {int(b): hexes(w) for b, w in TABLES["centroids"].items()}
BOUNDARIES = {int(b): hexes(w) for b, w in TABLES["boundaries"].items()}


def pm(text):
    return np.array([1 if c == "+" else -1 for c in text], F)


# --- element types: bits <-> f32 ---------------------------------------------

def to_bits(x, t):
    """The bits of f32 x rounded to nearest even in type t."""
    x = np.ascontiguousarray(x, F)
    if t == "f32":
        return x.view(np.uint32)
    if t == "f16":
        return x.astype(np.float16).view(np.uint16)
    u = x.view(np.uint32)
    r = ((u.astype(np.uint64) + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), r)


def decoded_bits(x, t, policy):
    """The bits of what a KV decoder gives: under the finite policy, what is finite does not become an infinity of f16 (§2)."""
    b = to_bits(x, t)
    if t == "f16" and policy == "finite":
        b = np.where(np.isfinite(x) & (b & 0x7FFF == 0x7C00), b - np.uint16(1), b)
    return b


def from_bits(b, t):
    if t == "f32":
        return b.view(F)
    if t == "f16":
        return b.view(np.float16).astype(F)
    return (b.astype(np.uint32) << 16).view(F)


def rounded(x, t):
    return from_bits(to_bits(x, t), t)


# --- §1 -----------------------------------------------------------------------

def canon(x, signed=False):
    small = np.abs(x) < F(2.0**-64)
    return np.where(small, np.copysign(F(0), x) if signed else F(0), x).astype(F)


def flush(x):
    return np.where(np.abs(x) < F(2.0**-126), F(0), x).astype(F)


# --- §2 -----------------------------------------------------------------------

def encode_keys(x, bits, signed, group, scale_type, policy):
    """Returns the stages of the encoder as a dict."""
    n, d = x.shape
    x = canon(x, policy == "compat")
    g = x.reshape(n, d // group, group)
    # The first of equal elements decides the sign of a zero.
    lo = np.take_along_axis(g, g.argmin(-1)[..., None], -1)
    hi = np.take_along_axis(g, g.argmax(-1)[..., None], -1)
    with np.errstate(all="ignore"):
        if signed:
            maxv = 2 ** (bits - 1) - 1
            scale = (hi - lo) / F(2 * maxv)
            se = scale + EPS
            zero = np.rint((hi + lo) / (F(2) * se))
            low = -maxv
        else:
            maxv = 2**bits - 1
            scale = (hi - lo) / F(maxv)
            se = scale + EPS
            zero = np.rint(lo / se)
            low = 0
        q = np.rint(g / se - zero)
        index = np.where(np.isnan(q), 0, np.clip(q, low, maxv)).astype(np.int32)
        if policy == "finite":
            bad = ~np.isfinite(rounded(zero, scale_type))
            c = lo + (hi - lo) * F(0.5)
            scale = np.where(bad, c, scale)
            zero = np.where(bad, F(1), zero)
            index = np.where(bad, 0, index)
            assert np.isfinite(rounded(scale, scale_type)).all(), "scale overflow"
    index = (index & 255).astype(np.uint8).reshape(n, d)
    scale, zero = scale[..., 0], zero[..., 0]
    return {"canon": x, "scale": scale, "zero": zero, "index": index, "codes": pack(index, bits),
            "scales": to_bits(scale, scale_type), "zeros": to_bits(zero, scale_type)}


def decode_keys(codes, scales, zeros, d, bits, signed, group, scale_type):
    """Returns indices and what they decode to, in f32."""
    index = unpack(codes, d, bits)
    i = index.view(np.int8) if signed else index
    n = len(codes)
    i = i.astype(F).reshape(n, d // group, group)
    with np.errstate(all="ignore"):
        x = (i + from_bits(zeros, scale_type)[..., None]) * from_bits(scales, scale_type)[..., None]
    return index, x.reshape(n, d)


# --- §3 -----------------------------------------------------------------------

def hadamard(x, transposed=False):
    """The normalised transform of rows."""
    n, d = x.shape
    m, p = 1, d
    if d & (d - 1):
        m, p = next((m, d // m) for m in (12, 20, 28) if d % m == 0 and (d // m) & (d // m - 1) == 0)
    y = x.reshape(n * m, p)
    h = 1
    while h < p:
        y = y.reshape(n * m, p // (2 * h), 2, h)
        a, b = y[:, :, 0], y[:, :, 1]
        y = np.stack([a + b, a - b], 2)
        h *= 2
    y = y.reshape(n, m, p)
    if m > 1:
        matrix = np.stack([pm(r) for r in TABLES["matrices"][str(m)]])
        if transposed:
            matrix = matrix.T
        out = np.zeros_like(y)
        for i in range(m):  # in column order, from +0
            out = out + y[:, None, i] * matrix[:, i, None]
        y = out
    return y.reshape(n, d) * F(1 / np.sqrt(np.float64(d)))


def rotate(x):
    return hadamard(x * pm(TABLES["signs"][str(x.shape[1])]))


def unrotate(x):
    return hadamard(x, transposed=True) * pm(TABLES["signs"][str(x.shape[1])])


# --- §4 -----------------------------------------------------------------------

def tree(q):
    q = q.copy()
    s = q.shape[-1] // 2
    while s:
        q = q[..., :s] + q[..., s:2 * s]
        s //= 2
    return q


def level(y, scale, bits):
    n = flush(y / (scale + EPS))
    return np.searchsorted(BOUNDARIES[bits], n, side="left").astype(np.uint8)


def encode_values(x, bits, group, scale_type, rule):
    n, d = x.shape
    x = canon(x)
    rotated = rotate(x)
    y = rotated.reshape(n, d // group, group)
    with np.errstate(all="ignore"):
        ms = flush(tree(flush(y * y)) * F(1 / group))
        scale = np.sqrt(ms)
        if rule == "rms":
            index = level(y, scale, bits)
        else:
            rms = scale
            best = np.full(rms.shape, F(np.inf))
            found = np.zeros(rms.shape, bool)
            index = level(y, rms, bits)
            for step in (16, 15, 17, 14, 18, 13, 19, 12, 20):
                s = rounded(rms * F(step / 16), scale_type)
                i = level(y, s, bits)
                e = CENTROIDS[bits][i] * s - y
                err = tree(flush(e * e))
                take = np.isfinite(s) & (~found | (err < best))
                scale = np.where(take, s, scale)
                best = np.where(take, err, best)
                index = np.where(take, i, index)
                found |= take
    index = index.reshape(n, d)
    scale = scale[..., 0]
    assert np.isfinite(rounded(scale, scale_type)).all(), "scale overflow"
    return {"canon": x, "rotated": rotated, "scale": scale, "index": index, "codes": pack(index, bits),
            "scales": to_bits(scale, scale_type)}


def decode_values(codes, scales, d, bits, group, scale_type):
    """Returns indices, and rows in f32 while still rotated."""
    index = unpack(codes, d, bits)
    n = len(codes)
    x = CENTROIDS[bits][index].reshape(n, d // group, group) * from_bits(scales, scale_type)[..., None]
    return index, x.reshape(n, d)


# --- §5 -----------------------------------------------------------------------

def pack(index, bits):
    if bits == 8:
        return index
    b = (index[..., None] >> np.arange(bits, dtype=np.uint8)) & 1
    return np.packbits(b.reshape(len(index), -1), axis=-1, bitorder="little")


def unpack(codes, d, bits):
    if bits == 8:
        return codes
    b = np.unpackbits(codes, axis=-1, bitorder="little").reshape(len(codes), d, bits)
    return (b << np.arange(bits, dtype=np.uint8)).sum(-1).astype(np.uint8)
