"""A model of the row codes, docs/numerics.md §10, in numpy.

Like model.py: written from that page. Arrays are [rows, d].
"""
import json
import pathlib

import numpy as np

from model import BOUNDARIES, CENTROIDS, F, canon, flush, from_bits, hexes, pack, rotate, to_bits
from trellis import lanes, pack as pack_states, tail_biting

PAGE = json.loads((pathlib.Path(__file__).resolve().parents[3] / "docs/tables.json").read_text())
TRELLIS = {int(k): hexes(t["bits"]) for k, t in PAGE["row_codes"].items()}


def scale(code):
    return (code.astype(np.uint16) << 7).view(np.float16).astype(F)


def centre(x):
    """The usual centre of rows: bits of mu and g. float64 to binary16 is one rounding in numpy."""
    x = canon(x).astype(np.float64)
    total = np.zeros(x.shape[1])
    for row in x:
        total = total + row
    half = lambda v, lo, hi: np.clip(v, lo, hi).astype(np.float16)
    mu = half(total / len(x), -65504, 65504)
    total = np.zeros(x.shape[1])
    for row in x:
        e = row - mu.astype(np.float64)
        total = total + e * e
    sigma = np.sqrt(total / len(x))
    g = np.ones(x.shape[1], np.float16)
    if sigma.max() > 0:
        g = half(np.sqrt(np.maximum(sigma, sigma.max() / 1024)), 2.0**-24, 65504)
    return mu.view(np.uint16), g.view(np.uint16)


def encode(x, code, bits, mean=None, gain=None):
    """Scale codes [rows] and bytes of codes."""
    v = canon(x)
    if mean is not None:
        v = canon((v - from_bits(mean, "f16")) / from_bits(gain, "f16"))
    y = rotate(v)
    d = y.shape[1]
    h = to_bits(np.sqrt(flush(lanes(flush(y * y)) / F(d))), "f16").astype(np.int32)
    assert (h < 0x7C00).all(), "scale overflow"
    c0 = np.minimum(h + 64 >> 7, 247)
    live = np.maximum(c0, 1)
    if code == "levels":
        steps = (0, -1, 1, -2, 2, -3, 3, -4, 4)
    else:
        steps = (0, -1, 1)
        states = tail_biting(y / scale(live)[:, None], TRELLIS[bits], 8, bits)
    best = np.full(len(y), np.inf, F)
    kept, index = live.copy(), np.zeros(y.shape, np.uint8)
    for step in steps:
        c = np.clip(c0 + step, 1, 247)
        s = scale(c)[:, None]
        if code == "levels":
            i = np.searchsorted(BOUNDARIES[bits], flush(y / s), side="left").astype(np.uint8)
            values = CENTROIDS[bits][i]
        else:
            i, values = index, TRELLIS[bits][states]
        e = values * s - y
        error = lanes(flush(e * e))
        take = error < best
        best, kept = np.where(take, error, best), np.where(take, c, kept)
        index = np.where(take[:, None], i, index)
    packed = pack(index, bits) if code == "levels" else pack_states(states, bits, d).view(np.uint8).reshape(len(y), -1)
    zero = c0 == 0
    return np.where(zero, 0, kept).astype(np.uint8), np.where(zero[:, None], 0, packed).astype(np.uint8)
