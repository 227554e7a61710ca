"""What coding a KV cache costs a model, with the built command in the loop.

    quality.py COMMAND BUILDDIR all|smoke

all writes results.json. smoke measures the presets with one model and one text and holds
them to results.json. BUILDDIR takes the models, and a journal from which an interrupted run
goes on.

Both models read both texts of testdata. A row of formats.json is a set of flags of "kv
encode". Caches hold bfloat16. Each row is measured in two settings:

prefix  The model reads PREFIX tokens. Their cache goes to a file, through kv encode and
        kv decode, and back. The next CONTINUED tokens are read after that cache and after
        the untouched one; their own keys and values are not coded.
all     The model reads PREFIX tokens, and the keys and values of every layer go through
        the command before the layer's attention reads them, so that later layers see what
        earlier ones made of it. The first SKIPPED positions are not counted.

The KL divergence is that from the next token's distribution with the untouched cache to
that with the coded one, in nats, the mean over positions. Bits are bytes of the coded file,
header included, per element of the cache: for PREFIX tokens, for LONG tokens, and the
limit, which is what the tokens between these two add.
"""
import functools
import hashlib
import json
import pathlib
import subprocess
import sys

import numpy as np

import models

PREFIX, CONTINUED, SKIPPED, LONG = 512, 256, 32, 1024
HERE = pathlib.Path(__file__).parent
TEXTS = ["gpl", "gomem"]


def write_cache(path, layers):
    """Writes {index: (k, v)} of shapes [heads, tokens, d] as a safetensors file of BF16."""
    header, offset, data = {}, 0, []
    for i, kv in layers.items():
        for name, x in zip(("keys", "values"), kv):
            raw = (np.ascontiguousarray(x).view(np.uint32) >> 16).astype("<u2").tobytes()
            header[f"layers.{i}.{name}"] = {"dtype": "BF16", "shape": [1, *x.shape], "data_offsets": [offset, offset + len(raw)]}
            offset += len(raw)
            data.append(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))


def read_cache(path):
    """The layers of a file as write_cache writes it."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    def tensor(name):
        t = header[name]
        if t["dtype"] != "BF16":
            raise ValueError(f"{path}: {name} is {t['dtype']}")
        a, b = t["data_offsets"]
        x = np.frombuffer(raw[start + a : start + b], "<u2").astype(np.uint32) << 16
        return x.view(np.float32).reshape(t["shape"][1:])
    layers = [n.split(".")[1] for n in header if n.endswith(".keys")]
    return {int(i): (tensor(f"layers.{i}.keys"), tensor(f"layers.{i}.values")) for i in layers}


def digest(data):
    return hashlib.sha256(data).hexdigest()


class Command:
    def __init__(self, path, folder):
        self.path = path
        self.plain, self.coded, self.back = (folder / f"{n}.safetensors" for n in ("plain", "coded", "back"))
        self.digest = digest(pathlib.Path(path).read_bytes())

    def run(self, *args):
        done = subprocess.run([self.path, "kv", *args, "--force"], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, done.args))}: {done.stderr}")

    def encoded(self, layers, flags):
        """The bytes of the coded file of layers, which kv encode leaves in self.coded."""
        write_cache(self.plain, layers)
        self.run("encode", self.plain, self.coded, *flags)
        return self.coded.stat().st_size

    def code(self, layers, flags):
        """The layers after kv encode and kv decode, and the bytes of the coded file."""
        size = self.encoded(layers, flags)
        self.run("decode", self.coded, self.back)
        return read_cache(self.back), size


def rounded(_, k, v):
    return models.bf16(k), models.bf16(v)


class Reference:
    """The logits of the untouched cache, with which others are compared."""

    def __init__(self, model, hidden):
        self.model, self.logits = model, model.logits(hidden)

    def compare(self, hidden):
        """KL divergence of each position, and where both have the same first token."""
        kl, same = [], []
        for i in range(0, len(hidden), 64):
            p, q = self.logits[i : i + 64], self.model.logits(hidden[i : i + 64])
            same.append(p.argmax(axis=-1) == q.argmax(axis=-1))
            p, q = (x - x.max(axis=-1, keepdims=True) for x in (p, q))
            ep, eq = np.exp(p), np.exp(q)
            zp, zq = (e.sum(axis=-1, dtype=np.float64) for e in (ep, eq))
            mean = np.einsum("ij,ij->i", ep, p - q, dtype=np.float64, casting="safe") / zp
            kl.append(mean - np.log(zp) + np.log(zq))
        return np.concatenate(kl), np.concatenate(same)


def figures(kl, same):
    return {
        "kl": float(kl.mean()), "kl_error": float(kl.std(ddof=1) / len(kl) ** 0.5),
        "kl_median": float(np.median(kl)), "top1": float(same.mean()),
    }


class Text:
    """One model and one text."""

    def __init__(self, model, tokens, command):
        self.model, self.tokens, self.command = model, tokens, command

    @functools.cached_property
    def untouched(self):
        """The cache of LONG tokens, and the hidden states."""
        caches = []
        hidden = self.model.forward(self.tokens[:LONG], caches, rounded)
        return caches, hidden

    @functools.cached_property
    def prefix(self):
        return [(k[:, :PREFIX], v[:, :PREFIX]) for k, v in self.untouched[0]]

    @functools.cached_property
    def continued(self):
        return Reference(self.model, self.untouched[1][PREFIX : PREFIX + CONTINUED])

    @functools.cached_property
    def whole(self):
        return Reference(self.model, self.untouched[1][SKIPPED:PREFIX])

    def measure_prefix(self, flags):
        caches = self.prefix
        layers, size = self.command.code(dict(enumerate(caches)), flags)
        long = self.command.encoded(dict(enumerate(self.untouched[0])), flags)
        elements = sum(k.size + v.size for k, v in caches)
        error = [sum(float(((a[j] - layers[i][j]) ** 2).sum()) for i, a in enumerate(caches)) /
                 sum(float((a[j] ** 2).sum()) for a in caches) for j in (0, 1)]
        coded = [layers[i] for i in range(len(caches))]
        hidden = self.model.forward(self.tokens[PREFIX : PREFIX + CONTINUED], coded, rounded)
        return figures(*self.continued.compare(hidden)) | {
            "bits_stored": 8 * size / elements, "bits_long": 8 * long / (elements * LONG / PREFIX),
            "bits_limit": 8 * (long - size) / (elements * (LONG - PREFIX) / PREFIX),
            "key_error": error[0], "value_error": error[1],
        }

    def measure_all(self, flags):
        store = lambda i, k, v: self.command.code({i: rounded(i, k, v)}, flags)[0][i]
        hidden = self.model.forward(self.tokens[:PREFIX], [], store)
        return figures(*self.whole.compare(hidden[SKIPPED:]))

    def measure(self, setting, flags):
        if setting == "untouched":
            return {"perplexity": self.perplexity()}
        return self.measure_prefix(flags) if setting == "prefix" else self.measure_all(flags)

    def perplexity(self):
        """Of the prefix, without the positions that are not counted."""
        logits = self.whole.logits[:-1]  # with the untouched cache
        at = logits[np.arange(len(logits)), self.tokens[SKIPPED + 1 : PREFIX]]
        top = logits.max(axis=-1)
        return float(np.exp((top + np.log(np.exp(logits - top[:, None]).sum(axis=-1)) - at).mean()))


def rounded_off(x):
    """x with four significant digits: another processor changes the rest."""
    return float(f"{x:.4g}")


class Measurements:
    """Runs what is not in the journal of an interrupted run yet."""

    def __init__(self, command, build):
        self.command, self.build = command, build
        self.journal = build / "journal.json"
        self.done = json.loads(self.journal.read_text()) if self.journal.exists() else {}
        self.model = functools.lru_cache(1)(self.load)
        self.text = functools.lru_cache(1)(self.read)

    def load(self, name):
        model = MODELS[name](self.build)
        return model, model.tokenizer()

    def read(self, name, text):
        model, tokenize = self.model(name)
        return Text(model, tokenize(words(text)), self.command)

    def row(self, name, text, setting, format):
        row = {"model": name, "text": text, "setting": setting, "format": format["name"]}
        key = json.dumps([self.command.digest, digest(words(text).encode()), row, format["flags"]])
        if key not in self.done:
            measured = self.text(name, text).measure(setting, format["flags"])
            self.done[key] = {k: rounded_off(v) for k, v in measured.items()}
            self.journal.write_text(json.dumps(self.done))
        print(*row.values(), self.done[key], flush=True)
        return row | self.done[key]


def words(text):
    return (HERE / "testdata" / f"{text}.txt").read_text()


def everything(m, formats):
    """Measures all there is, for results.json."""
    rows = []
    for name in MODELS:
        for text in TEXTS:
            rows.append(m.row(name, text, "untouched", {"name": "-", "flags": []}))
            rows += [m.row(name, text, setting, f) for f in formats for setting in ("prefix", "all")]
    RESULTS.write_text("[\n" + ",\n".join(" " + json.dumps(r) for r in rows) + "\n]\n")


def smoke(m, formats):
    """Holds what the presets lose with one model and one text to results.json."""
    name, text, failed = "SmolLM2-135M", "gpl", []
    before = {r["format"]: r for r in json.loads(RESULTS.read_text())
              if (r["model"], r["text"], r["setting"]) == (name, text, "prefix")}
    for f in formats:
        if "preset" in f:
            row, was = m.row(name, text, "prefix", f), before[f["name"]]
            if not 0.8 < row["kl"] / was["kl"] < 1.25 or row["bits_stored"] > was["bits_stored"] + 0.005:
                failed.append(f"{f['name']}: KL divergence {row['kl']} at {row['bits_stored']} bits, "
                              f"in results.json {was['kl']} at {was['bits_stored']}")
    if failed:
        sys.exit("\n".join(failed))


MODELS = {"SmolLM2-135M": lambda build: models.smollm2(), "Gemma-3-270M": models.gemma3}
RESULTS = HERE / "results.json"


def main(command, build, what):
    build = pathlib.Path(build)
    formats = json.loads((HERE / "formats.json").read_text())
    {"all": everything, "smoke": smoke}[what](Measurements(Command(command, build), build), formats)


if __name__ == "__main__":
    main(*sys.argv[1:])
