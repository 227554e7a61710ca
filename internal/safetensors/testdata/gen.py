"""Writes the files beside it with the public implementation.

pip install safetensors==0.8.0 numpy==2.4.6; python gen.py
"""
import ctypes
import struct

import numpy as np
import safetensors
import safetensors.numpy

sizes = {
    "bool": 1, "uint8": 1, "int8": 1, "float8_e5m2": 1, "float8_e4m3fn": 1, "float8_e8m0fnu": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
    "uint16": 2, "int16": 2, "float16": 2, "bfloat16": 2,
    "uint32": 4, "int32": 4, "float32": 4,
    "uint64": 8, "int64": 8, "float64": 8, "complex64": 8,
}
# Six elements of each dtype; byte i of a tensor is 16*len(name)+i, so that a
# reader that swaps bytes or mixes tensors up is seen. Booleans are 0 and 1.
tensors = {}
for name, size in sizes.items():
    data = bytes((16 * len(name) + i) % 256 for i in range(6 * size))
    if name == "bool":
        data = bytes([0, 1, 1, 0, 1, 0])
    tensors[name] = (name, [2, 3], data)
tensors["scalar"] = ("float32", [], struct.pack("<f", -1.5))
tensors["empty"] = ("bfloat16", [4, 0, 7], b"")
buffers = {k: ctypes.create_string_buffer(t[2], max(len(t[2]), 1)) for k, t in tensors.items()}
specs = {
    k: safetensors.TensorSpec(dtype=d, shape=s, data_ptr=ctypes.addressof(buffers[k]), data_len=len(b))
    for k, (d, s, b) in tensors.items()
}
with open("dtypes.safetensors", "wb") as f:
    f.write(safetensors.serialize(specs, {"purpose": 'every dtype, <&> "\u00e9\u2603\n'}))

safetensors.numpy.save_file(
    {
        "layers.0.k": (np.arange(12, dtype=np.float32) / 4 - 1).reshape(3, 4),
        "layers.0.v": (np.arange(12, dtype=np.float16) - 6).reshape(3, 4),
        "ids": np.array([0, 1, 2**31 - 1, -(2**31)], dtype=np.int32),
        "\u03b1/\u65e5\u672c": np.array([2**63 - 1, -(2**63)], dtype=np.int64),
        "odd": np.arange(5, dtype=np.uint8),
    },
    "numpy.safetensors",
)
