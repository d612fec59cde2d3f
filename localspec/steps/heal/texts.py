"""Let a model write training texts: it invents users' questions and answers them (Magpie, Xu et al. 2024)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any

from localspec.core.types import Tokens
from localspec.drafting.build_step import TargetText
from localspec.formats.huggingface.torch_devices import run_in_halves

MAX_QUESTION, MAX_ANSWER = 192, 256  # tokens
MIN_ANSWER = 8  # tokens; shorter answers teach nothing


def write_texts(
    model: Any,
    chat_wrappers: Sequence[tuple[Tokens, Tokens]],
    stop_tokens: Sequence[int],
    *,
    prompts: Sequence[Tokens] = (),
    seconds: float,
    max_texts: int,
    batch: int,
    seed: int,
) -> Iterator[list[TargetText]]:
    """Yield batches of texts that `model` writes, for `seconds` or until there are `max_texts`.

    `chat_wrappers` are the tokens before and after a user's message, for each kind of user. Given `prompts`
    are answered instead of invented questions. Questions are sampled with `seed`; answers are greedy, like
    most texts that a draft will guess.
    """
    import torch

    torch.manual_seed(seed)
    until, written, number = monotonic() + seconds, 0, 0
    while written < max_texts and monotonic() < until:
        count = min(batch, max_texts - written)
        if prompts:
            batch_prompts = [list(prompt) for prompt in prompts[number * batch :][:count]]
            if not batch_prompts:
                return
        else:
            wrappers = [chat_wrappers[(number * batch + at) % len(chat_wrappers)] for at in range(count)]
            batch_prompts = _invent_prompts(model, wrappers, stop_tokens)
        number += 1
        answers = _generate(model, batch_prompts, stop_tokens, MAX_ANSWER, sampled=False, keep_stop=True)
        texts = [
            TargetText(prompt, answer)
            for prompt, answer in zip(batch_prompts, answers, strict=True)
            if len(answer) >= MIN_ANSWER
        ]
        written += len(texts)
        yield texts


def _invent_prompts(
    model: Any, wrappers: Sequence[tuple[Tokens, Tokens]], stop_tokens: Sequence[int]
) -> list[list[int]]:
    """Let the model write a user's message in each of `wrappers`; empty messages are left out."""
    starts = [list(before) for before, _ in wrappers]
    questions = _generate(model, starts, stop_tokens, MAX_QUESTION, sampled=True)
    return [
        [*before, *question, *after]
        for (before, after), question in zip(wrappers, questions, strict=True)
        if question
    ]


def _generate(
    model: Any,
    prompts: list[list[int]],
    stop_tokens: Sequence[int],
    max_new_tokens: int,
    *,
    sampled: bool,
    keep_stop: bool = False,
) -> list[list[int]]:
    """Return the model's continuation of each prompt, without its stop token unless `keep_stop`."""

    def run(batch: list[list[int]]) -> list[list[int]]:
        outputs = _generate_batch(model, batch, stop_tokens, max_new_tokens, sampled=sampled)
        return [_until_stop(tokens, stop_tokens, keep_stop) for tokens in outputs]

    return run_in_halves(prompts, run)


def _generate_batch(
    model: Any, prompts: list[list[int]], stop_tokens: Sequence[int], max_new_tokens: int, *, sampled: bool
) -> list[list[int]]:
    import torch
    from transformers import GenerationConfig

    if not prompts:
        return []
    width, padding = max(map(len, prompts)), stop_tokens[0] if stop_tokens else 0
    masks = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    padded = [[padding] * (width - len(prompt)) + prompt for prompt in prompts]
    sampling = {"do_sample": True, "temperature": 1.0, "top_p": 0.95, "top_k": 0} if sampled else {}
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        eos_token_id=list(stop_tokens) or None,
        pad_token_id=padding,
        **sampling,
    )
    inputs, mask = (torch.tensor(rows, device=model.device) for rows in (padded, masks))
    with torch.inference_mode():
        output = model.generate(inputs, attention_mask=mask, generation_config=config)
    continuations: list[list[int]] = output[:, width:].tolist()
    return continuations


def _until_stop(tokens: list[int], stop_tokens: Sequence[int], keep: bool) -> list[int]:
    for at, token in enumerate(tokens):
        if token in stop_tokens:
            return tokens[: at + keep]
    return tokens
