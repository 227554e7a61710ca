"""Prints the digests of ../README.md, "Digests", by model.py and trellis.py.

    python digest.py keys 100 10000 1000000
"""
import hashlib
import sys

import numpy as np

import model
import trellis
from model import F

U = np.uint64
GOLDEN = U(0x9E3779B97F4A7C15)


def mix(z):
    z = (z ^ (z >> U(30))) * U(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> U(27))) * U(0x94D049BB133111EB)
    return z ^ (z >> U(31))


def words(seed, i, j):
    """Word j of iteration i; i is [rows, 1], j is [1, n]."""
    with np.errstate(over="ignore"):
        return mix(U(seed) + ((i << U(20)) + j + U(1)) * GOLDEN)


def rows(seed, i, t, n):
    """The n elements of each iteration of the array i, in f32; exact in type t."""
    i = np.asarray(i, U)[:, None]
    j = np.arange(n, dtype=U)[None]
    e = (words(seed, i, U(0)) % U(12)).astype(np.int32) - 5
    a = words(seed, i, U(1) + U(2) * j)
    s = sum(((a >> U(k)) & U(0xFFFF)).astype(np.int32) for k in (0, 16, 32, 48)) - 131070
    if t == "f32":
        x = np.ldexp(s.astype(F), e - 15)
    else:
        x = np.ldexp((s >> 10).astype(F), e - 5)
    kind = words(seed, i, U(2) + U(2) * j) % U(64)
    x = np.where(kind == 2, x * F(64), x)
    x = np.where(kind == 3, np.ldexp(x, -14 if t == "f16" else -60), x)
    x = np.where(kind == 0, F(0), x)
    x = np.where(kind == 1, F(-0.0), x).astype(F)
    same = model.rounded(x, t)
    assert (same.view(np.uint32) == x.view(np.uint32)).all(), t
    return x


def digits(p, *radices):
    out = []
    for r in radices:
        out.append(p % r)
        p //= r
    return out


SCALES = ["f16", "f32", "bf16"]
DTYPES = ["f32", "f16", "bf16"]
FORMATS = [(8, True), (8, False), (5, False), (4, False), (3, False), (2, False)]


def out(x, t, policy="finite"):
    """Little-endian bytes of rows that a KV decoder gives, NaN without payload."""
    return clean(model.decoded_bits(x, t, policy), t)


def clean(b, t):
    nan = {"f32": np.uint32(0x7FC00000), "f16": np.uint16(0x7E00), "bf16": np.uint16(0x7FC0)}[t]
    b = np.where(np.isnan(model.from_bits(b, t)), nan, b)
    return b.astype(b.dtype.newbyteorder("<")).reshape(len(b), -1).view(np.uint8)


def keys(p, i):
    f, g, s, po, t, d = digits(p, 6, 2, 3, 2, 3, 3)
    (bits, signed), group, st, policy, t, d = FORMATS[f], [32, 64][g], SCALES[s], ["finite", "compat"][po], DTYPES[t], [64, 128, 192][d]
    e = model.encode_keys(rows(1, i, t, d), bits, signed, group, st, policy)
    _, y = model.decode_keys(e["codes"], e["scales"], e["zeros"], d, bits, signed, group, st)
    return [clean(e["scales"], st), clean(e["zeros"], st), e["codes"], out(y, t, policy)]


def values(p, i):
    b, g, s, r, t, d = digits(p, 5, 2, 3, 2, 3, 6)
    bits, group, st, rule, t, d = [2, 3, 4, 5, 8][b], [32, 64][g], SCALES[s], ["rms", "search"][r], DTYPES[t], [64, 128, 192, 256, 320, 448][d]
    x = rows(2, i, t, d)
    e = model.encode_values(x, bits, group, st, rule)
    _, y = model.decode_values(e["codes"], e["scales"], d, bits, group, st)
    return [clean(e["scales"], st), e["codes"], out(y, t), out(model.unrotate(y), t), out(model.unrotate(x), t)]


def weights(p, i):
    k, c, r, po, t, b = digits(p, 4, 3, 2, 2, 3, 2)
    k, code, rule, policy, t, T = k + 1, ["1mad", "3inst", "rand"][c], ["rms", "refit"][r], ["finite", "compat"][po], DTYPES[t], [32, 64][b]
    scales, states, words = trellis.encode(rows(3, i, "f32", 2 * T), k + 4, k, T, code, policy, rule)
    y = trellis.decode(scales, states, code, k + 4)
    return [clean(scales, "f16"), words.astype("<u4").view(np.uint8), out(y, t, "compat")]


DIGESTS = {"keys": (keys, 648), "values": (values, 1080), "weights": (weights, 288)}


def digest(name, n, chunk=100000):
    f, period = DIGESTS[name]
    h = hashlib.sha256()
    for lo in range(0, n, chunk):
        hi = min(n, lo + chunk)
        done = [None] * (hi - lo)
        for first in range(lo, min(hi, lo + period)):
            i = np.arange(first, hi, period)
            parts = f(first * 347 % period, i)
            for r, k in enumerate(i):
                done[k - lo] = b"".join(p[r].tobytes() for p in parts)
        for b in done:
            h.update(b)
    return h.hexdigest()


if __name__ == "__main__":
    for n in sys.argv[2:]:
        print(sys.argv[1], n, digest(sys.argv[1], int(n)), flush=True)
