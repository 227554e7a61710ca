"""Writes ../tables.json: the constants of the formats that no arithmetic gives.

Signs and Hadamard matrices are MLX's own. The Lloyd-Max tables are those of
vllm-metal, kept as bit patterns in the file itself: they are read from it and
written back; check.py decodes vllm-metal's vectors with them.

    python tables.py
"""
import json
import pathlib

import mlx.core as mx
import numpy as np

PATH = pathlib.Path(__file__).parent.parent / "tables.json"
DIMS = [32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 1024]


def text(row):
    return "".join("+" if v > 0 else "-" for v in row)


def signs(d):
    return text(np.array(1 - 2 * mx.random.randint(0, 2, shape=[d], key=mx.random.key(42))))


def matrix(m):
    """Row j, column i multiplies input i of output j."""
    return [text(r) for r in np.array(mx.hadamard_transform(mx.eye(m), scale=1.0)).T]


def main():
    mx.set_default_device(mx.cpu)
    old = json.loads(PATH.read_text())
    PATH.write_text(json.dumps({
        "comment": old["comment"],
        "provenance": {"signs": f"1 - 2*randint(0, 2), key 42, of MLX {mx.__version__}",
                       "matrices": f"hadamard_transform of the identity, MLX {mx.__version__}",
                       "centroids": old["provenance"]["centroids"]},
        "centroids": old["centroids"],
        "boundaries": old["boundaries"],
        "signs": {str(d): signs(d) for d in DIMS},
        "matrices": {str(m): matrix(m) for m in (12, 20, 28)},
    }, indent=1) + "\n")


if __name__ == "__main__":
    main()
