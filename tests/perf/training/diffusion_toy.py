"""Train the toy diffusion models of the tests: `python tests/perf/training/diffusion_toy.py`, on a CPU.

The target has two layers, the draft one; both fill in blocks of eight characters. The same seed gives the
same weights on the same machine.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "diffusion")]

import puzzles  # noqa: E402

from localspec.formats.diffusion import config, weights  # noqa: E402
from localspec.formats.diffusion.decoder import BlockDecoder  # noqa: E402
from localspec.formats.huggingface.safetensors import write_file  # noqa: E402
from localspec.training.blocks import block_loss, two_views  # noqa: E402

INTO = ROOT / "tests" / "data" / "diffusion"
BLOCK, BATCH, RATE = 8, 128, 2e-3
SIZES = {"toy": (2, 96, 4, 256), "draft": (1, 48, 2, 128)}  # layers, width, heads, inner width


def config_of(name: str) -> dict[str, Any]:
    """Return the config.json of a model."""
    layers, width, heads, inner = SIZES[name]
    letters = {letter: token for token, letter in enumerate(puzzles.ALPHABET)}
    return {
        "model_type": config.OWN,
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "intermediate_size": inner,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": len(letters),
        "tie_word_embeddings": True,
        "block_size": BLOCK,
        "mask_token_id": letters[puzzles.MASK],
        "eos_token_id": letters[puzzles.END],
    }


def tokenizer() -> Tokenizer:
    """Return a tokenizer of one token a character."""
    vocabulary = {letter: token for token, letter in enumerate(puzzles.ALPHABET)}
    found = Tokenizer(models.WordLevel(vocabulary, unk_token=puzzles.PAD))
    found.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    found.decoder = decoders.Fuse()
    found.add_special_tokens([AddedToken(each, special=True) for each in (puzzles.MASK, puzzles.PAD)])
    return found


def drawn_weights(shape: config.DiffusionShape, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Return random weights to train."""
    found = {}
    for name, size in weights.shapes(shape).items():
        values = torch.ones(size) if len(size) == 1 else torch.randn(size, generator=generator) * 0.02
        if "o_proj" in name or "down_proj" in name:
            values /= math.sqrt(2 * shape.layers)
        found[name] = values.requires_grad_()
    return found


def batch(source: Any, tokens: dict[str, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return puzzles with their answers [batch, length], and which tokens are learned."""
    drawn = list(islice(source, BATCH))
    rows = [[tokens[letter] for letter in puzzle.prompt + puzzle.answer] for puzzle in drawn]
    padded = [row + [tokens[puzzles.PAD]] * (puzzles.LONGEST - len(row)) for row in rows]
    # what follows the end is learned as padding, so that a block may be filled in whole
    learned = [[at >= len(puzzle.prompt) for at in range(puzzles.LONGEST)] for puzzle in drawn]
    return torch.tensor(padded), torch.tensor(learned)


def trained(name: str, steps: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the config and the weights in float16 of a trained model."""
    about = config_of(name)
    folder = INTO / name
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    shape = shape_of(about)
    found = drawn_weights(shape, generator)
    decoder = BlockDecoder(shape, found)
    tokens = {letter: token for token, letter in enumerate(puzzles.ALPHABET)}
    table = torch.from_numpy(two_views(puzzles.LONGEST, BLOCK))
    optimizer = torch.optim.AdamW(found.values(), RATE, betas=(0.9, 0.98), weight_decay=0.01)
    plan = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps, pct_start=0.05)
    source, started, losses = puzzles.drawn(0, tested=False), time.time(), []
    for step in range(steps):
        loss = block_loss(decoder, *batch(source, tokens), table, generator)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(found.values(), 1.0)
        optimizer.step()
        plan.step()
        losses.append(loss.item())
        if step % 200 == 199:
            print(f"{name} {step + 1} {np.mean(losses[-200:]):.4f} {time.time() - started:.0f} s", flush=True)
    return about, {key: value.detach().half().numpy() for key, value in found.items()}


def shape_of(about: dict[str, Any]) -> config.DiffusionShape:
    """Return the shape that a config.json stands for."""
    names = ("vocab", "context", "epsilon", "base", "tied", "mask", "block")
    keys = ("vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_theta")
    keys += ("tie_word_embeddings", "mask_token_id", "block_size")
    return config.DiffusionShape(
        family=config.OWN,
        layers=about["num_hidden_layers"],
        width=about["hidden_size"],
        heads=about["num_attention_heads"],
        key_heads=about["num_key_value_heads"],
        head_width=about["hidden_size"] // about["num_attention_heads"],
        inner=about["intermediate_size"],
        query_norm=False,
        bias=False,
        causal=True,
        shifted=False,
        **{name: about[key] for name, key in zip(names, keys, strict=True)},
    )


def main() -> None:
    """Train both models and write them into the tests' data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4500)
    parser.add_argument("--only", choices=list(SIZES))
    given = parser.parse_args()
    for name in [given.only] if given.only else SIZES:
        about, found = trained(name, given.steps)
        folder = INTO / name
        write_file(folder / "model.safetensors", found)
        (folder / "config.json").write_text(json.dumps(about, indent=1) + "\n", "utf-8")
        tokenizer().save(str(folder / "tokenizer.json"))


if __name__ == "__main__":
    main()
