"""Train the toy of the K-Forcing tests, two layers over 24 tokens, and hints for it.

PYTHONPATH=. python tests/perf/training/k_forcing_toy.py tests/data/k_forcing
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from localspec.drafting.build_step import TargetText
from localspec.formats.k_forcing import layout
from localspec.training.k_forcing.stages import KForcingPlan, train_hints

VOCAB, LENGTH, WIDTH = 24, 48, 64
STEPS, SECONDS, K, RANK = 700, 200.0, 4, 16


class Printed:
    """Shows what a training found."""

    def say(self, line: str) -> None:
        print(line, flush=True)

    def advance(self, count: int = 1) -> None:
        """Count nothing."""


def chain(seed: int) -> np.ndarray[Any, Any]:
    """Return the distributions [previous, last, next] of a language whose words follow two others."""
    numbers = np.random.default_rng(seed)
    last, before = (numbers.dirichlet(np.full(VOCAB, 0.08), VOCAB) for _ in range(2))
    mixed = 0.8 * last[None] + 0.2 * before[:, None] + 1e-4
    return np.asarray(mixed / mixed.sum(-1, keepdims=True))


def written(laws: np.ndarray[Any, Any], count: int, seed: int) -> np.ndarray[Any, Any]:
    """Return texts [count, LENGTH] of the language."""
    numbers = np.random.default_rng(seed)
    texts = numbers.integers(0, VOCAB, (count, LENGTH))
    sums = laws.cumsum(-1)
    for at in range(2, LENGTH):
        rows = sums[texts[:, at - 2], texts[:, at - 1]]
        texts[:, at] = (rows < numbers.random((count, 1)) * rows[:, -1:]).sum(-1)
    return texts


def toy(laws: np.ndarray[Any, Any]) -> Any:
    """Return a target of two layers that has learned the language."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, step / 20, (STEPS - step) / (STEPS * 0.5))
        ids = torch.from_numpy(written(laws, 64, step + 1))
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"target: {loss.item():.3f} nats a token")
    return model.eval().requires_grad_(False)


def main(into: Path) -> None:
    laws = chain(0)
    model = toy(laws)
    into.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(into / "toy")
    texts = [TargetText(text[:2].tolist(), text[2:].tolist()) for text in written(laws, 4096, 10_001)]
    plan = KForcingPlan(SECONDS, k=K, rank=RANK, batch=32, rate=4e-3)
    with tempfile.TemporaryDirectory() as folder:
        hints = train_hints(model, texts[256:], texts[:256], plan, Path(folder), Printed())
    print(hints.about)
    (into / "hints").mkdir(exist_ok=True)
    layout.write(hints, into / "hints")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
