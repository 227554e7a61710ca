"""Writes digests.json: the SHA-256 of the packed bytes of every row of the demo.

It is an implementation of docs/numerics.md in numpy, written from that page and
sharing nothing with the Go code. Lloyd-Max tables are read from lloydmax/tables.go,
where they are data. Run it in this folder, with numpy 2: python3 digests.py
"""
import hashlib
import json
import re

import numpy as np

from make import read

f32, f16 = np.float32, np.float16
EPS, TINY = f32(1e-8), f32(2.0**-126)


def canon(x):  # §1
    x = x.astype(f32)
    return np.where(np.abs(x) < f32(2.0**-64), f32(0), x)


def flush(x):
    return np.where(np.abs(x) < TINY, f32(0), x)


def pack(index, bits):  # §5
    bit = (index[..., None].astype(np.uint8) >> np.arange(bits, dtype=np.uint8)) & 1
    return np.packbits(bit.reshape(*index.shape[:-1], -1), axis=-1, bitorder="little")


def tree(q):  # §4
    while q.shape[-1] > 1:
        h = q.shape[-1] // 2
        q = q[..., :h] + q[..., h:]
    return q[..., 0]


def keys(x, bits, signed):  # §2, finite policy
    x = canon(x).reshape(-1, 32)
    lo, hi = x.min(1), x.max(1)
    top = f32(2 ** (bits - 1) - 1 if signed else 2**bits - 1)
    scale = (hi - lo) / (f32(2) * top if signed else top)
    se = scale + EPS
    zero = np.rint((hi + lo) / (f32(2) * se) if signed else lo / se)
    index = np.clip(np.rint(x / se[:, None] - zero[:, None]), -top if signed else f32(0), top)
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(zero.astype(f16))
    scale = np.where(bad, lo + (hi - lo) * f32(0.5), scale)
    zero = np.where(bad, f32(1), zero)
    index[bad] = 0
    codes = pack(index.astype(np.int16).astype(np.uint8), bits)
    return [codes, scale.astype(f16), zero.astype(f16)]


def signs(d):  # §3: MLX's threefry2x32 with key 42
    ks = [0, 42, 0 ^ 42 ^ 0x1BD11BDA]
    m = 0xFFFFFFFF
    half = d // 2  # every d here is even
    out = [0] * d
    for i in range(half):
        a, b = (i + ks[0]) & m, (i + half + ks[1]) & m
        for r in range(5):
            for rot in (13, 15, 26, 6) if r % 2 == 0 else (17, 29, 16, 24):
                a = (a + b) & m
                b = ((b << rot) | (b >> (32 - rot))) & m
                b ^= a
            a = (a + ks[(r + 1) % 3]) & m
            b = (b + ks[(r + 2) % 3] + r + 1) & m
        out[i], out[i + half] = a, b
    return np.array([-1.0 if w >= 2**31 - 64 else 1.0 for w in out], f32)


def rotate(x):  # §3
    d = x.shape[-1]
    x = x * signs(d)
    h = 1
    while h < d:
        p = x.reshape(-1, d // (2 * h), 2, h)
        x = np.stack([p[:, :, 0] + p[:, :, 1], p[:, :, 0] - p[:, :, 1]], 2).reshape(-1, d)
        h *= 2
    return x * f32(1 / np.sqrt(np.float64(d)))


def table(bits):
    text = open("../../../lloydmax/tables.go").read()
    words = np.array([int(w, 16) for w in re.findall(r"0x[0-9a-f]{8}", text)], np.uint32).view(f32)
    at = 0
    for b in (2, 3, 4, 5, 8):
        n = 2**b
        if b == bits:
            return words[at : at + n], words[at + n : at + 2 * n - 1]
        at += 2 * n - 1
    raise ValueError(bits)


def values(x, bits, search):  # §4
    centroids, boundaries = table(bits)
    y = rotate(canon(x).reshape(-1, x.shape[-1])).reshape(-1, 32)
    scale = np.sqrt(flush(tree(flush(y * y)) * f32(1 / 32)))

    def index(s):
        n = flush(y / (s + EPS)[:, None])
        return (n[..., None] > boundaries).sum(-1)

    if not search:
        return [pack(index(scale), bits), scale.astype(f16)]
    best = best_err = best_index = None
    for a in (16, 15, 17, 14, 18, 13, 19, 12, 20):
        s = (scale * f32(a / 16)).astype(f16).astype(f32)
        i = index(s)
        e = centroids[i] * s[:, None] - y
        err = tree(flush(e * e))
        if best is None:
            best, best_err, best_index = s, err, i
        else:
            better = err < best_err
            best, best_err = np.where(better, s, best), np.where(better, err, best_err)
            best_index = np.where(better[:, None], i, best_index)
    return [pack(best_index, bits), best.astype(f16)]


def viterbi(x, f, L, k, overlap=None):  # §6
    B, T = x.shape
    states, groups = np.arange(2**L), 2 ** (L - k)
    ff = f * f

    def emit(t):
        return (f32(2) * x[:, t : t + 1]) * f - ff

    g = emit(0)
    if overlap is not None:
        g = np.where((states >> k)[None] != overlap[:, None], f32(-1e30), g)
    back = np.zeros((T, B, groups), np.uint8)
    for t in range(1, T):
        by_m = g.reshape(B, 2**k, groups)
        best = by_m.max(1)
        back[t] = 2**k - 1 - (by_m == best[:, None])[:, ::-1].argmax(1)
        g = emit(t) + np.repeat(best, 2**k, 1)
    if overlap is not None:
        g = np.where((states % groups)[None] != overlap[:, None], f32(-1e30), g)
    cur = 2**L - 1 - g[:, ::-1].argmax(1)
    path = np.zeros((B, T), np.int64)
    path[:, T - 1] = cur
    for t in range(T - 1, 0, -1):
        j = cur >> k
        cur = j + back[t][np.arange(B), j].astype(np.int64) * groups
        path[:, t - 1] = cur
    return path


def lanes(terms):  # sums over a row: 32 lanes in order, then the tree
    acc = np.zeros((terms.shape[0], 32), f32)
    for c in range(terms.shape[1] // 32):
        acc = acc + terms[:, 32 * c : 32 * c + 32]
    return tree(acc)


def weights(w, k, refit, L=12, T=256):
    w = canon(w)
    s = np.arange(2**L, dtype=np.uint64)
    h = (s * 34038481 + 76625530) & 0xFFFFFFFF
    y = sum((h >> sh) & 255 for sh in (0, 8, 16, 24)).astype(np.int64) - 510
    f = y.astype(f32) / f32(147.800537109375)
    lut_rms = np.sqrt(np.mean(f.astype(np.float64) ** 2))
    scale = np.sqrt(lanes(w * w) / f32(w.shape[1])) * f32(1 / lut_rms)
    if refit:
        scale = scale * f32({1: 7 / 8, 2: 33 / 32, 3: 35 / 32, 4: 73 / 64}.get(k, 1))
    stored = scale.astype(f16)
    x = (w / stored.astype(f32)[:, None]).reshape(-1, T)
    half = T // 2
    seam = viterbi(np.roll(x, -half, 1), f, L, k)[:, T - half] >> k
    path = viterbi(x, f, L, k, seam)
    assert ((path[:, 0] >> k) == path[:, -1] % 2 ** (L - k)).all()
    if refit:
        v = f[path].reshape(w.shape)
        stored = (lanes(w * v) / lanes(v * v)).astype(f16)
    symbols = path[:, ::-1] % 2**k  # reversed time
    return [pack(symbols, k), stored]


def main():
    sample = read("sample.safetensors")
    out = {}

    def add(row, parts):
        out[row] = hashlib.sha256(b"".join(np.ascontiguousarray(p).tobytes() for p in parts)).hexdigest()

    for name in "real", "synthetic":
        for kind, bits, signed in ("q8_0", 8, True), ("q4_0", 4, False), ("uint2", 2, False):
            add(f"{name} keys/{kind}", keys(sample["keys." + name], bits, signed))
        for bits, rule in (8, "rms"), (4, "rms"), (4, "search"), (3, "rms"), (3, "search"), (2, "rms"):
            add(f"{name} values/{bits} bits, {rule}", values(sample["values." + name], bits, rule == "search"))
    for k, rule in (4, "refit"), (3, "rms"), (2, "rms"):
        add(f"real weights/trellis {k} bits, {rule}", weights(sample["weights.real"], k, rule == "refit"))
    with open("digests.json", "w") as f:
        json.dump(out, f, indent=1)
        f.write("\n")


main()
