"""Writes digests.json: the SHA-256 of the packed bytes of every row of the demo.

The bytes come from the numpy model of docs/numerics.md in conformance/vectors/oracle,
which shares nothing with the Go code. Run it in this folder: python3 digests.py
"""
import hashlib
import json
import pathlib
import sys

import numpy as np

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "conformance/vectors/oracle"))
import model  # noqa: E402
import rowcodes  # noqa: E402
import trellis  # noqa: E402
from make import read  # noqa: E402


def rows(x):
    return x.astype(np.float32).reshape(-1, x.shape[-1])


def main():
    sample = read("sample.safetensors")
    out = {}

    def add(row, *parts):
        out[row] = hashlib.sha256(b"".join(np.ascontiguousarray(p).tobytes() for p in parts)).hexdigest()

    for name in "real", "synthetic":
        for kind, bits, signed in ("q8_0", 8, True), ("q4_0", 4, False), ("uint2", 2, False):
            k = model.encode_keys(rows(sample["keys." + name]), bits, signed, 32, "f16", "finite")
            add(f"{name} keys/{kind}", k["codes"], k["scales"], k["zeros"])
        for bits, rule in (8, "rms"), (4, "rms"), (4, "search"), (3, "rms"), (3, "search"), (2, "rms"):
            v = model.encode_values(rows(sample["values." + name]), bits, 32, "f16", rule)
            add(f"{name} values/{bits} bits, {rule}", v["codes"], v["scales"])
        for side, settings in ("keys", (("r5", True), ("t4", True), ("t3", True))), ("values", (("r4", False), ("t4", False), ("t3", False))):
            x = sample[f"{side}.{name}"].astype(np.float32)
            heads = x.reshape(-1, *x.shape[-2:])
            for code, centred in settings:
                parts = []
                for h in heads:
                    c = rowcodes.centre(h) if centred else ()
                    scales, codes = rowcodes.encode(h, {"r": "levels", "t": "trellis"}[code[0]], int(code[1]), *c)
                    parts.append((codes, scales, *c))
                add(f"{name} {side}/{code}" + (" centred" if centred else ""), *(p for same in zip(*parts) for p in same))
    for k, rule in (4, "refit"), (3, "rms"), (2, "rms"):
        scales, _, words = trellis.encode(sample["weights.real"], 12, k, 256, "1mad", "finite", rule)
        add(f"real weights/trellis {k} bits, {rule}", words, scales)
    with open("digests.json", "w") as f:
        json.dump(out, f, indent=1)
        f.write("\n")


main()
