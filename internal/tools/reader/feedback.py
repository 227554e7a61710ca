"""Codes with feedback, docs/numerics.md §6.6, and compares with the command.

    python feedback.py TURBOTRELLIS

Written from the page; search, scales and packing are those of
conformance/vectors/oracle, which are numpy too.
"""
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import cases
import reader

sys.path.append(str(cases.ROOT / "conformance/vectors/oracle"))
import trellis  # noqa: E402
from model import F, canon, from_bits, to_bits  # noqa: E402

L, CODE = 12, "1mad"


def factor(H, B):
    """The whole of H, and its factor L."""
    n = len(H)
    H = np.tril(H) + np.tril(H, -1).T
    mean = 0.0
    for i in range(n):
        mean += H[i, i]
    A = H + np.eye(n) * (0.01 * (mean / n))
    C = np.zeros((n, n))
    for j in range(n):
        for i in range(j, n):
            s = A[i, j]
            for m in range(j):
                s -= C[i, m] * C[j, m]
            C[i, j] = np.sqrt(s) if i == j else s / C[j, j]
    low = C.copy()
    for b in range(0, n, B):
        for i in range(b + B, n):
            for j in range(B - 1, -1, -1):
                low[i, b + j] /= C[b + j, b + j]
                for m in range(j):
                    low[i, b + m] -= low[i, b + j] * C[b + j, b + m]
    return H, low


def product(H, x):
    """Rows of x times H, every sum in index order."""
    y = np.zeros(x.shape)
    for j in range(len(H)):
        y = y + H[None, :, j] * x[:, j:j + 1]
    return y


def total(x):
    s = np.zeros(x.shape[1:])
    for v in x:
        s = s + v
    return s


def first_scales(rows, k, rule):
    _, inverse = trellis.values(CODE, L)
    w = canon(rows)
    s = np.sqrt(trellis.lanes(w * w) / F(rows.shape[1])) * inverse
    return to_bits(s * trellis.ALPHA[k] if rule == "refit" else s, "f16")


def refit(num, den, first):
    bits = to_bits(num / den, "f16")
    v = from_bits(bits, "f16")
    return np.where(np.isfinite(v) & (v > 0) & (from_bits(first, "f16") != 0), bits, first)


def encode(w, hessian, k, T, axis, rule):
    """Scales, packed words, and which coded rows kept the feedback."""
    f, _ = trellis.values(CODE, L)
    H, low = factor(hessian.astype(np.float64), T if axis == 1 else 1)
    rows = w if axis == 1 else np.ascontiguousarray(w.T)
    plain_bits, plain_states, plain_words = trellis.encode(rows, L, k, T, CODE, "finite", rule)
    bits = first_scales(rows, k, rule)
    s1 = from_bits(bits, "f16")
    divisor = np.where(s1 == 0, F(1), s1)
    n, values, states, e = len(H), np.zeros(rows.shape, F), np.zeros(rows.shape, np.int64), np.zeros(rows.shape, F)
    if axis == 1:
        for b in range(n - T, -1, -T):
            fed = np.zeros((len(rows), T))
            for j in range(b + T, n):
                fed = fed + e[:, j:j + 1].astype(np.float64) * low[j, b:b + T]
            at = np.s_[:, b:b + T]
            target = (w[at] + fed).astype(F)
            states[at] = trellis.tail_biting(canon(target) / divisor[:, None], f, L, k)
            values[at] = f[states[at]]
            e[at] = w[at] - values[at] * s1[:, None]
        if rule == "refit":
            y = product(H, values.astype(np.float64)).astype(F)
            bits = refit(trellis.lanes(canon(w) * y), trellis.lanes(values * y), bits)
    else:
        for i in range(n - 1, -1, -1):
            fed = np.zeros(rows.shape[1])
            for j in range(i + 1, n):
                fed = fed + e[j].astype(np.float64) * low[j, i]
            target = canon((rows[i] + fed).astype(F))[None]
            states[i] = trellis.tail_biting((target / divisor[i]).reshape(-1, T), f, L, k).reshape(-1)
            values[i] = f[states[i]]
            if rule == "refit":
                v = values[i:i + 1]
                bits[i:i + 1] = refit(trellis.lanes(target * v), trellis.lanes(v * v), bits[i:i + 1])
            e[i] = rows[i] - values[i] * from_bits(bits[i:i + 1], "f16")[0]
    words = np.asarray(trellis.pack(states.reshape(-1, T), k, T)).reshape(len(rows), -1)

    def loss(bits, states):
        decoded = f[states] * from_bits(bits, "f16")[:, None]
        error = w.astype(np.float64) - (decoded if axis == 1 else decoded.T)
        per_output = total((error * product(H, error)).T)
        return per_output if axis == 1 else total(per_output)

    keep = np.broadcast_to(loss(bits, states) <= loss(plain_bits, plain_states.reshape(rows.shape)), len(rows))
    return np.where(keep, bits, plain_bits), np.where(keep[:, None], words, plain_words.reshape(words.shape)), keep


def main():
    rng = np.random.default_rng(5)
    compared = kept = coded = 0
    with tempfile.TemporaryDirectory() as folder:
        dir = pathlib.Path(folder)
        for out, n, T, axis in ((6, 64, 32, 1), (64, 12, 32, 0)):
            x = rng.standard_normal((40, n)) @ rng.standard_normal((n, n))
            hessian = (x.T @ x / 40).astype(F)
            w = rng.standard_normal((out, n)).astype(F)
            w[1] = 0
            cases.write(dir / "w.safetensors", {"m.weight": ("F32", w.shape, w.tobytes())}, {})
            cases.write(dir / "h.safetensors", {"m.weight.hessian": ("F32", hessian.shape, hessian.tobytes())}, {})
            for k in (1, 2, 3):
                for rule in ("rms", "refit"):
                    args = [sys.argv[1], "trellis", "encode", dir / "w.safetensors", dir / "o.safetensors", "--force", "--tensors", "m",
                            "--k", k, "--block", T, "--axis", axis, "--scale", rule, "--hessian", dir / "h.safetensors"]
                    subprocess.run([str(a) for a in args], check=True, capture_output=True)
                    f = reader.File(dir / "o.safetensors").tensors
                    scales, words, keep = encode(w, hessian, k, T, axis, rule)
                    for name, got, want in (("scales", f["m.scales"], scales.astype("<u2")), ("weight", f["m.weight"], words.astype("<u4"))):
                        if got.data != want.tobytes():
                            sys.exit(f"feedback: axis {axis}, k {k}, {rule}: {name} differ")
                        compared += want.size
                    kept, coded = kept + int(keep.sum()), coded + len(keep)
    print(f"feedback: {compared} words and scales equal; {kept} of {coded} rows kept the feedback")
    if not 0 < kept < coded:
        sys.exit("feedback: the fallback or the feedback was not compared")


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        main()
