"""A model of the trellis codec, docs/numerics.md §6, in numpy.

Like model.py: written from that page. Arrays are [rows, …]; every row is coded
at once.
"""
import math

import numpy as np

from model import F, canon, from_bits, to_bits, tree

# --- codes --------------------------------------------------------------------


def one_mad(s):
    x = (s.astype(np.uint64) * 34038481 + 76625530) & 0xFFFFFFFF
    y = sum(((x >> np.uint64(k)) & np.uint64(255)).astype(np.int32) for k in (0, 8, 16, 24)) - 510
    return y.astype(F) / F(147.800537109375)


def three_inst(s):
    x = ((s.astype(np.uint64) * 89226354 + 64248484) & 0x8FFF8FFF) ^ 0x3B603B60
    half = lambda u: u.astype(np.uint16).view(np.float16).astype(F)
    return half(x >> np.uint64(16)) + half(x & np.uint64(0xFFFF))


def rand(s):
    """Box-Muller pairs over a 32-bit mixer; the C library's functions in f64."""
    def uniform(n):
        z = (0xC0FFEE + n * 0x9E3779B9) & 0xFFFFFFFF
        z = ((z ^ (z >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
        z = ((z ^ (z >> 15)) * 0x735A2D97) & 0xFFFFFFFF
        return ((z ^ (z >> 15)) + 0.5) / 2**32

    def one(i):
        pair = int(i) & ~1
        r = math.sqrt(-2 * math.log(uniform(pair + 1)))
        t = 2 * math.pi * uniform(pair + 2)
        return r * (math.sin(t) if i & 1 else math.cos(t))
    return np.array([one(i) for i in s], F)


CODES = {"1mad": one_mad, "3inst": three_inst, "rand": rand}
_values = {}


def values(code, L):
    """f(s) of every state, and f32(1/lutRMS)."""
    if (code, L) not in _values:
        f = CODES[code](np.arange(1 << L))
        total = 0.0
        for v in f:
            total += float(v) * float(v)
        _values[code, L] = f, F(1 / math.sqrt(total / len(f)))
    return _values[code, L]


# --- the search ---------------------------------------------------------------


def viterbi(x, f, L, k, start=None, end=None):
    """States [rows, T] of the best path; start and end pin the overlap."""
    n, T = x.shape
    S, J = 1 << L, 1 << (L - k)
    low = F(-1e30)
    ff = f * f
    state = np.arange(S)

    def emission(t):
        return (F(2) * x[:, t:t + 1]) * f - ff

    g = emission(0)
    if start is not None:
        g = np.where(state >> k == start[:, None], g, low)
    back = np.empty((T, n, J), np.int32)
    for t in range(1, T):
        h = g.reshape(n, 1 << k, J)
        m = (1 << k) - 1 - h[:, ::-1].argmax(1)  # ties: the largest m
        back[t] = m
        best = np.take_along_axis(h, m[:, None], 1)[:, 0]
        g = emission(t) + np.repeat(best, 1 << k, axis=1)
    if end is not None:
        g = np.where(state % J == end[:, None], g, low)
    s = S - 1 - g[:, ::-1].argmax(1)  # ties: the largest state
    path = np.empty((n, T), np.int32)
    rows = np.arange(n)
    for t in range(T - 1, -1, -1):
        path[:, t] = s
        if t:
            s = (s >> k) + back[t][rows, s >> k] * J
    return path


def tail_biting(x, f, L, k):
    T = x.shape[1]
    first = viterbi(np.roll(x, -(T // 2), axis=1), f, L, k)
    overlap = first[:, (T - T // 2) % T] >> k
    path = viterbi(x, f, L, k, overlap, overlap)
    assert (path[:, 0] >> k == path[:, -1] % (1 << (L - k))).all()
    return path


# --- rows ---------------------------------------------------------------------

ALPHA = {1: F(7 / 8), 2: F(33 / 32), 3: F(35 / 32), 4: F(73 / 64)}


def lanes(p):
    """The sum of products over a row: 32 lanes in order, then the tree."""
    acc = p[:, :32]
    for i in range(32, p.shape[1], 32):
        acc = acc + p[:, i:i + 32]
    return tree(acc)[:, 0]


def encode(w, L, k, T, code, policy, rule):
    """Scales as f16 bits, states and packed words of rows of whole blocks."""
    n, cols = w.shape
    f, inv = values(code, L)
    w = canon(w)
    rms = np.sqrt(lanes(w * w) / F(cols))
    scale = rms * inv
    if rule == "refit":
        scale = scale * ALPHA.get(k, F(1))
    bits = to_bits(scale, "f16")
    if policy == "compat":
        bits = np.where((w == 0).all(1), np.uint16(0x3C00), bits)
    div = from_bits(bits, "f16")
    div = np.where(div == 0, F(1), div)
    x = (w / div[:, None]).reshape(n * cols // T, T)
    states = tail_biting(x, f, L, k)
    if rule == "refit":
        v = f[states].reshape(n, cols)
        with np.errstate(all="ignore"):
            refit = to_bits(lanes(w * v) / lanes(v * v), "f16")
        r = from_bits(refit, "f16")
        bits = np.where(np.isfinite(r) & (r > 0) & (from_bits(bits, "f16") != 0), refit, bits)
    return bits, states.reshape(n, cols), pack(states, k, T).reshape(n, -1)


def pack(states, k, T):
    """Words [blocks, T·k/32]: symbol t at bit (T−1−t)·k."""
    b = (states & ((1 << k) - 1))[:, ::-1]
    stream = ((b[..., None] >> np.arange(k)) & 1).astype(np.uint8).reshape(len(b), -1)
    return np.packbits(stream, axis=1, bitorder="little").view("<u4")


def decode(bits, states, code, L):
    f, _ = values(code, L)
    return f[states] * from_bits(bits, "f16")[:, None]
