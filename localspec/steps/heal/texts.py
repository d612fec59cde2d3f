"""Texts that a model writes by itself: it invents what users ask, then answers (Magpie, Xu et al. 2024)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any

from localspec.core.types import Tokens
from localspec.drafting.build_step import Text
from localspec.formats.huggingface.torch_devices import run_in_halves

QUESTION, ANSWER = 192, 256  # tokens at most
SHORTEST = 8  # tokens of an answer that teaches something


def write(
    model: Any,
    turns: Sequence[tuple[Tokens, Tokens]],
    ends: Sequence[int],
    *,
    asked: Sequence[Tokens] = (),
    seconds: float,
    most: int,
    batch: int,
    seed: int,
) -> Iterator[list[Text]]:
    """Yield what `model` answered, some texts at a time, until `seconds` are over or `most` are written.

    `turns` are the tokens before and behind a user's turn, for each kind of user. With `asked`, whole
    prompts, these are answered and nothing is invented. `ends` are the tokens that end a turn. Questions are
    sampled from the model with `seed`, answers are greedy, as what a draft must guess mostly is.
    """
    import torch

    torch.manual_seed(seed)
    until, written, number = monotonic() + seconds, 0, 0
    while written < most and monotonic() < until:
        count = min(batch, most - written)
        if asked:
            prompts = [list(prompt) for prompt in asked[number * batch :][:count]]
            if not prompts:
                return
        else:
            chosen = [turns[(number * batch + at) % len(turns)] for at in range(count)]
            questions = _grown(model, [list(before) for before, _ in chosen], ends, QUESTION, sampled=True)
            prompts = [
                [*before, *question, *behind]
                for (before, behind), question in zip(chosen, questions, strict=True)
                if question
            ]
        number += 1
        answers = _grown(model, prompts, ends, ANSWER, sampled=False, keep_end=True)
        found = [
            Text(prompt, answer)
            for prompt, answer in zip(prompts, answers, strict=True)
            if len(answer) >= SHORTEST
        ]
        written += len(found)
        yield found


def _grown(
    model: Any,
    prompts: list[list[int]],
    ends: Sequence[int],
    longest: int,
    *,
    sampled: bool,
    keep_end: bool = False,
) -> list[list[int]]:
    """Return what the model writes behind each prompt, without the token that ended it unless `keep_end`."""
    return run_in_halves(
        prompts, lambda some: _generated(model, some, ends, longest, sampled=sampled, keep_end=keep_end)
    )


def _generated(
    model: Any, prompts: list[list[int]], ends: Sequence[int], longest: int, *, sampled: bool, keep_end: bool
) -> list[list[int]]:
    import torch
    from transformers import GenerationConfig

    if not prompts:
        return []
    width, padding = max(map(len, prompts)), ends[0] if ends else 0
    there = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in prompts], device=model.device)
    given = torch.tensor([[padding] * (width - len(one)) + one for one in prompts], device=model.device)
    asked = {"do_sample": True, "temperature": 1.0, "top_p": 0.95, "top_k": 0} if sampled else {}
    config = GenerationConfig(
        max_new_tokens=longest, eos_token_id=list(ends) or None, pad_token_id=padding, **asked
    )
    with torch.inference_mode():
        found = model.generate(given, attention_mask=there, generation_config=config)[:, width:].tolist()
    return [_until_end(tokens, ends, keep_end) for tokens in found]


def _until_end(tokens: list[int], ends: Sequence[int], keep: bool) -> list[int]:
    for at, token in enumerate(tokens):
        if token in ends:
            return tokens[: at + keep]
    return tokens
