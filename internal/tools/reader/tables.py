"""Writes docs/tables.json, the constants of docs/numerics.md.

    python tables.py

Nothing here is computed: tables, signs and matrices are those of
conformance/vectors/tables.json, and code values those of testdata/trellis, which
other programs made. The Go test beside this file compares all of it with the code.
"""
import hashlib
import json
import pathlib
import struct

ROOT = pathlib.Path(__file__).resolve().parents[3]
SHOWN = 16  # values of a code


def floats(bits):
    return {"bits": [f"{b:08x}" for b in bits],
            "decimal": [float(f"{struct.unpack('<f', struct.pack('<I', b))[0]:.9g}") for b in bits]}


def codes():
    raw = (ROOT / "testdata/trellis/codes.safetensors").read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    out = {}
    for code in ("1mad", "3inst", "rand"):
        lo, hi = header[f"code.{code}.L16"]["data_offsets"]
        data = raw[8 + n + lo:8 + n + hi]
        out[code] = floats(struct.unpack(f"<{SHOWN}I", data[:4 * SHOWN])) | {"sha256": hashlib.sha256(data).hexdigest()}
    return out


def row_codes():
    raw = (ROOT / "testdata/row_codes.safetensors").read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    out = {}
    for k in (2, 3, 4):
        lo, hi = header[f"table.k{k}"]["data_offsets"]
        halves = struct.unpack("<256e", raw[8 + n + lo:8 + n + hi])
        out[str(k)] = floats(struct.unpack("<256I", struct.pack("<256f", *halves)))
    return out


def text(v, indent=0):
    """JSON with short lists on lines of eight."""
    pad = " " * indent
    if isinstance(v, dict):
        return "{\n" + ",\n".join(f"{pad} {json.dumps(k)}: {text(x, indent + 1)}" for k, x in v.items()) + f"\n{pad}}}"
    if isinstance(v, list):
        per = 1 if isinstance(v[0], str) and len(v[0]) > 8 else 8
        lines = [", ".join(json.dumps(x) for x in v[i:i + per]) for i in range(0, len(v), per)]
        return "[\n" + ",\n".join(f"{pad} {line}" for line in lines) + f"\n{pad}]"
    return json.dumps(v, ensure_ascii=False)


def main():
    t = json.loads((ROOT / "conformance/vectors/tables.json").read_text())
    numbers = lambda k, bits: floats([int(b, 16) for b in t[k][bits]])
    out = {
        "comment": "Constants of docs/numerics.md. \"bits\" are f32 bit patterns in hexadecimal, \"decimal\" the same numbers.",
        "lloyd_max": {b: {k: numbers(k, b) for k in ("centroids", "boundaries")} for b in t["centroids"]},
        "matrices_comment": "§3. Row j, column c is M[j][c].",
        "matrices": t["matrices"],
        "signs_comment": "§3. Known answers for some d, by d; the others follow from the generator.",
        "signs": t["signs"],
        "codes_comment": "§6.1. The first 16 values of each code, and the SHA-256 of f(0) … f(65535) as little-endian f32.",
        "codes": codes(),
        "row_codes_comment": "§10. The 256 values of the trellis row codes, by k. Each is a binary16 number, here as f32.",
        "row_codes": row_codes(),
    }
    (ROOT / "docs/tables.json").write_text(text(out) + "\n")


if __name__ == "__main__":
    main()
