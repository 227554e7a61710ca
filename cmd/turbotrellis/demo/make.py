"""Writes sample.safetensors, the data that the demo embeds.

Run it in this folder, with numpy 2: python3 make.py
"""
import json
import struct

import numpy as np


def read(path):
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + n])
    types = {"F16": "<f2", "F32": "<f4"}
    out = {}
    for name, e in header.items():
        if name != "__metadata__":
            a, b = e["data_offsets"]
            out[name] = np.frombuffer(raw[8 + n + a : 8 + n + b], types[e["dtype"]]).reshape(e["shape"])
    return out


def write(path, metadata, tensors):
    header, data = {"__metadata__": metadata}, b""
    for name, x in tensors.items():
        raw = x.tobytes()
        header[name] = {
            "dtype": {"float16": "F16", "float32": "F32"}[x.dtype.name],
            "shape": list(x.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + data)


def main():
    kv = read("../../../testdata/kv_minilm.safetensors")
    weights = read("../../../testdata/weights_minilm.safetensors")

    # Keys of language models have a few channels much larger than the rest.
    rng = np.random.Generator(np.random.PCG64(7))
    keys = rng.standard_normal((128, 128))
    keys[:, [5, 40, 97]] *= np.array([12.0, -18.0, 9.0])
    values = rng.standard_normal((128, 128))

    write(
        "sample.safetensors",
        {
            "real": "all-MiniLM-L6-v2 (Apache-2.0, see LICENSE-APACHE): keys and values of layer 3, heads 0 and 1, "
            "256 tokens of the Apache licence text; 8 rows of encoder.layer.0.output.dense.weight",
            "synthetic": "normal, with three outlier channels in the keys; no model made it",
        },
        {
            "weights.real": weights["encoder.layer.0.output.dense.weight"][:8],
            "keys.real": kv["layers.3.keys"][0, :2],
            "values.real": kv["layers.3.values"][0, :2],
            "keys.synthetic": keys.astype("<f2"),
            "values.synthetic": values.astype("<f2"),
        },
    )


if __name__ == "__main__":
    main()
