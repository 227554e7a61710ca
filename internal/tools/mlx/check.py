"""Compares turbotrellis affine with MLX and mlx-lm.

    check.py COMMAND EMPTY-DIRECTORY    compare
    check.py vectors EMPTY-DIRECTORY    write the folder of model/testdata/mlx

The second, after make mlx-check: build/mlx/venv/bin/python internal/tools/mlx/check.py vectors DIRECTORY
"""

import hashlib
import json
import pathlib
import subprocess
import sys

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm import utils
from mlx_lm.models import llama

CONFIG = {
    "model_type": "llama",
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "intermediate_size": 384,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 96,
    "tie_word_embeddings": False,
}
TYPES = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}


def build(config, dtype):
    """A model of random weights that stress the quantiser."""
    model = llama.Model(llama.ModelArgs.from_dict(config))
    key = mx.random.key(7)
    weights = []
    for name, w in tree_flatten(model.parameters()):
        key, a, b = mx.random.split(key, 3)
        v = mx.random.normal(w.shape, key=a)
        if w.ndim == 2:
            v = v * mx.exp(2 * mx.random.normal((w.shape[0], 1), key=b))
            v[0] = 0.5  # groups of one value
            v[1] = mx.abs(v[1])
        weights.append((name, v.astype(dtype)))
    model.load_weights(weights)
    mx.eval(model.parameters())
    return model


def save(model, config, path, shard_bytes=0):
    """What a source looks like: whole, or in shards."""
    path.mkdir()
    weights = dict(tree_flatten(model.parameters()))
    if not shard_bytes:
        mx.save_safetensors(str(path / "model.safetensors"), weights, {"format": "mlx"})
    else:
        shards, size = [{}], 0
        for name, w in weights.items():
            if size + w.nbytes > shard_bytes and shards[-1]:
                shards.append({})
                size = 0
            shards[-1][name] = w
            size += w.nbytes
        index = {"metadata": {"total_size": sum(w.nbytes for w in weights.values())}, "weight_map": {}}
        for i, shard in enumerate(shards):
            file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
            mx.save_safetensors(str(path / file), shard, {"format": "mlx"})
            index["weight_map"].update({name: file for name in shard})
        (path / "model.safetensors.index.json").write_text(json.dumps(index, indent=4))
    (path / "config.json").write_text(json.dumps(config, indent=4))


def read(path):
    weights = {}
    for file in sorted(path.glob("model*.safetensors")):
        weights.update(mx.load(str(file)))
    return weights


def bits(x):
    return x.view({1: mx.uint8, 2: mx.uint16, 4: mx.uint32}[x.dtype.size])


def same(what, got, want):
    global compared
    if got.dtype != want.dtype or got.shape != want.shape or not mx.array_equal(bits(got), bits(want)).item():
        sys.exit(f"{what}: {got.dtype} {got.shape}, want {want.dtype} {want.shape}, or other bits")
    compared += got.size


def dequantized(model):
    """The weights of every quantised layer as mx.dequantize restores them."""
    for name, layer in model.named_modules():
        if isinstance(layer, (nn.QuantizedLinear, nn.QuantizedEmbedding)):
            yield name + ".weight", mx.dequantize(layer.weight, layer.scales, layer.biases, layer.group_size, layer.bits)


def compare(command, work):
    def run(*args):
        subprocess.run([command, *map(str, args)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    tokens = mx.array([[1, 5, 90, 17, 33]])
    (work / "map.json").write_text(json.dumps({"lm_head": 8, "v_proj": 6}))
    folders = 0
    for dtype, shard in (("bf16", 0), ("f16", 90_000), ("f32", 200_000)):
        model = build(CONFIG, TYPES[dtype])
        source = work / f"source-{dtype}"
        save(model, CONFIG, source, shard)
        plain = read(source)
        for width in (2, 3, 4, 5, 6, 8):
            for group in (32, 64, 128):
                mixed = ["--bits-map", work / "map.json"] if width == 4 else []
                what = f"{dtype}, {width} bits, groups of {group}"
                out, back = work / f"{dtype}-{width}-{group}", work / f"{dtype}-{width}-{group}-back"
                run("affine", "encode", source, out, "--bits", width, "--group-size", group, *mixed)
                run("affine", "decode", out, back)
                loaded, config = utils.load_model(out)
                if config["quantization"] != config["quantization_config"]:
                    sys.exit(f"{what}: quantization_config is not a copy")
                loaded(tokens)
                restored, layers = read(back), 0
                for name, w in dequantized(loaded):
                    same(f"{what}: {name}", restored[name], w)
                    layers += 1
                if layers != 2 * 7 + 2:
                    sys.exit(f"{what}: {layers} layers are quantised")

                # mlx-lm quantises the same model to the same tensors.
                theirs = build(CONFIG, TYPES[dtype])
                wide = {"lm_head": 8, "v_proj": 6} if mixed else {}

                def predicate(path, module):
                    if not hasattr(module, "to_quantized"):
                        return False
                    return {"group_size": group, "bits": wide.get(path.split(".")[-1], width)}

                nn.quantize(theirs, group, width, class_predicate=predicate)
                ours, want = read(out), dict(tree_flatten(theirs.parameters()))
                if ours.keys() != want.keys():
                    sys.exit(f"{what}: tensors {ours.keys() ^ want.keys()}")
                for name, w in want.items():
                    same(f"{what}: {name}", ours[name], w)
                same(f"{what}: logits", loaded(tokens), theirs(tokens))
                for name, w in plain.items():
                    if w.ndim == 1:
                        same(f"{what}: {name}", restored[name], w)
                folders += 1

    # What mlx-lm writes is read, through both kinds of codes and back.
    model = build(CONFIG, mx.bfloat16)
    quantized, config = utils.quantize_model(model, dict(CONFIG), 64, 4)
    theirs, trellis, again = work / "theirs", work / "trellis", work / "again"
    utils.save_model(theirs, quantized)
    utils.save_config(config, theirs / "config.json")
    run("affine", "decode", theirs, work / "theirs-back")
    restored = read(work / "theirs-back")
    for name, w in dequantized(quantized):
        same(f"mlx-lm's own {name}", restored[name], w)
    run("trellis", "encode", theirs, trellis, "--bits", 3, "--block", 32, "--tensors", r"\.weight$", "--backend", "cpu")
    run("trellis", "decode", trellis, work / "trellis-back")
    run("affine", "encode", trellis, again, "--bits", 5)
    run("affine", "encode", work / "trellis-back", work / "at-once", "--bits", 5)
    ours, want = read(again), read(work / "at-once")
    if ours.keys() != want.keys():
        sys.exit(f"by way of trellis codes: tensors {ours.keys() ^ want.keys()}")
    for name, w in want.items():
        same(f"by way of trellis codes: {name}", ours[name], w)
    loaded, _ = utils.load_model(again)
    loaded(tokens)
    folders += 2
    print(f"{folders} folders, {compared} elements equal")
    if not folders or not compared:
        sys.exit("nothing was compared")


def vectors(work):
    config = dict(CONFIG, hidden_size=32, intermediate_size=64, num_hidden_layers=1, vocab_size=32, tie_word_embeddings=True)
    model = build(config, mx.bfloat16)
    save(model, config, work / "source")

    def predicate(path, module):
        if not hasattr(module, "to_quantized"):
            return False
        return {"group_size": 32, "bits": 6} if "v_proj" in path else True

    quantized, config = utils.quantize_model(model, config, 32, 3, quant_predicate=predicate)
    utils.save_model(work / "quantized", quantized)
    utils.save_config(config, work / "quantized" / "config.json")
    sums = {name: hashlib.sha256(bytes(memoryview(bits(w)))).hexdigest() for name, w in dequantized(quantized)}
    (work / "dequantized.json").write_text(json.dumps(sums, indent=1, sort_keys=True) + "\n")


compared = 0
if sys.argv[1] == "vectors":
    vectors(pathlib.Path(sys.argv[2]))
else:
    compare(sys.argv[1], pathlib.Path(sys.argv[2]))
