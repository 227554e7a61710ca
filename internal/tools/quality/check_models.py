"""Compares models.py with llama.cpp: the tokens of both texts, and at a few positions the most
probable next tokens.

    check_models.py BUILDDIR

llama.cpp rounds the inputs of its products to 8 bits, so probabilities are not equal: the
logarithms of those of the ten most probable tokens may differ by TOLERANCE, in the mean over
positions.
"""
import json
import pathlib
import sys
import urllib.request

import numpy as np
import xllamacpp

import models

POSITIONS = [20, 200, 511, 600, 767]  # beyond 512 Gemma's windows leave tokens out
TOLERANCE = 0.15
HERE = pathlib.Path(__file__).parent


def serve(path):
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.warmup, params.verbosity = 2048, 1, False, 0
    return xllamacpp.Server(params)


def post(server, path, body):
    request = urllib.request.Request(server.listening_address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))


def check(name, model, path):
    server, tokenize, differences = serve(path), model.tokenizer(), []
    for text in ("gpl", "gomem"):
        words = (HERE / "testdata" / f"{text}.txt").read_text()
        tokens = tokenize(words)
        theirs = post(server, "/tokenize", {"content": words, "add_special": True})["tokens"]
        if theirs != tokens:
            at = next(i for i, (a, b) in enumerate(zip(theirs + [None], tokens + [None])) if a != b)
            sys.exit(f"{name}, {text}: token {at} differs from llama.cpp's: {tokens[at:at + 5]}, {theirs[at:at + 5]}")
        hidden = model.forward(tokens[: max(POSITIONS) + 1], [], lambda _, k, v: (k, v))
        for p in POSITIONS:
            logits = model.logits(hidden[p : p + 1])[0].astype(np.float64)
            logs = logits - logits.max()
            logs -= np.log(np.exp(logs).sum())
            answer = post(server, "/completion", {"prompt": tokens[: p + 1], "n_predict": 1, "n_probs": 10, "temperature": 0})
            top = answer["completion_probabilities"][0]["top_logprobs"]
            differences.append(np.mean([abs(logs[t["id"]] - t["logprob"]) for t in top]))
            print(f"{name}, {text}, position {p}: {differences[-1]:.3f} nats apart", flush=True)
    if np.mean(differences) > TOLERANCE:
        sys.exit(f"{name}: {np.mean(differences):.3f} nats apart in the mean, more than {TOLERANCE}")


def main(build):
    folder = pathlib.Path(build)
    check("SmolLM2-135M", models.smollm2(), models.smollm2_file())
    check("Gemma-3-270M", models.gemma3(folder), models.gemma3_file(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
