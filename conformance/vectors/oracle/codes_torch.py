"""Evaluates the trellis codes in torch and holds them against testdata.

    python codes_torch.py ../../../testdata

QTIP's programs are torch programs: its codes are integer arithmetic and one
division (1mad) or one sum of two halves (3inst), done here by torch's own kernels
on the CPU. QTIP adds the halves in binary16; the format here adds them exactly
(docs/numerics.md §6), and this prints how many values that changes.
"""
import json
import pathlib
import struct
import sys

import torch

STATES = torch.arange(1 << 16, dtype=torch.int64)
WORD = (1 << 32) - 1


def one_mad(s):
    x = (s * 34038481 + 76625530) & WORD
    total = sum((x >> shift) & 255 for shift in (0, 8, 16, 24)) - 510
    return total.to(torch.float32) / torch.tensor(147.800537109375, dtype=torch.float32)


def three_inst(s):
    x = (s * 89226354 + 64248484) & WORD
    lanes = (1 << 15) + (1 << 12) - 1
    x = (x & (lanes << 16 | lanes)) ^ 996162400

    def half(bits):
        return torch.where(bits >= 1 << 15, bits - (1 << 16), bits).to(torch.int16).view(torch.float16)

    return half(x >> 16), half(x & 0xFFFF)


def expected(path):
    raw = path.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, e in json.loads(raw[8 : 8 + n]).items():
        if name != "__metadata__":
            lo, hi = e["data_offsets"]
            out[name] = torch.frombuffer(bytearray(raw[8 + n + lo : 8 + n + hi]), dtype=torch.int32)
    return out


def same(name, got, want):
    bad = int((got.view(torch.int32) != want).sum())
    if len(got) != len(want) or bad:
        sys.exit(f"{name}: {bad} of {len(want)} differ")
    print(f"{name}: {len(want)} values equal")


def main():
    want = expected(pathlib.Path(sys.argv[1]) / "trellis" / "codes.safetensors")
    same("1mad", one_mad(STATES), want["code.1mad.L16"])
    hi, lo = three_inst(STATES)
    same("3inst", hi.to(torch.float32) + lo.to(torch.float32), want["code.3inst.L16"])
    other = (hi + lo).to(torch.float32)
    changed = int((other.view(torch.int32) != want["code.3inst.L16"]).sum())
    print(f"3inst added in binary16: {changed} values differ")


main()
