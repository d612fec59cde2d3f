"""Write llama.cpp's perplexity of perplexity.txt, as the truth that imported models are compared with.

Run it by hand with llama-cpp-python installed, in the repository's root:

    python tests/data/make_perplexity.py smollm2-135m=SmolLM2.gguf qwen2.5-coder-0.5b=qwen.gguf ...

The text is read in one go, without a first token; the mean is over all tokens but the first.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

HERE = Path(__file__).parent
THREADS = 2


def tokens_of(model: Any, text: str) -> list[int]:
    data = text.encode()
    room = (ctypes.c_int32 * (len(data) + 8))()
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    count = llama_cpp.llama_tokenize(vocabulary, data, len(data), room, len(room), False, False)
    return list(room[:count])


def logits_of(model: Any, tokens: list[int]) -> np.ndarray:
    """Return the logits [tokens, vocab] after every token."""
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = 2048
    settings.n_threads = settings.n_threads_batch = THREADS
    context = llama_cpp.llama_init_from_model(model, settings)
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for at, token in enumerate(tokens):
        batch.token[at], batch.pos[at], batch.logits[at] = token, at, True
        batch.n_seq_id[at], batch.seq_id[at][0] = 1, 0
    if llama_cpp.llama_decode(context, batch):
        raise SystemExit("llama.cpp could not read the text")
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    rows = np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), (len(tokens), vocab)).copy()
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    return rows


def perplexity(rows: np.ndarray, tokens: list[int]) -> float:
    losses = []
    for row, token in zip(rows, tokens[1:], strict=False):
        shifted = row.astype(np.float64) - row.max()
        losses.append(np.log(np.exp(shifted).sum()) - shifted[token])
    return float(np.exp(np.mean(losses)))


def main() -> None:
    text = (HERE / "perplexity.txt").read_text("utf-8")
    found = {}
    for argument in sys.argv[1:]:
        name, _, path = argument.partition("=")
        model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        tokens = tokens_of(model, text)
        found[name] = {
            "tokens": len(tokens),
            "perplexity": round(perplexity(logits_of(model, tokens), tokens), 4),
        }
        llama_cpp.llama_model_free(model)
    (HERE / "perplexity.json").write_text(json.dumps(found, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
