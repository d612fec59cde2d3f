"""Let a model write training texts: it invents users' questions and answers them (Magpie, Xu et al. 2024)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

from localspec.core.types import Tokens
from localspec.decoder.loading import of_model
from localspec.disk import atomic
from localspec.drafting.build_step import BuildContext, TargetText
from localspec.drafting.time_limit import TimeLimit
from localspec.errors import BadValue, UnsupportedModel
from localspec.formats.huggingface.torch_devices import run_in_halves
from localspec.training.loop import length
from localspec.training.writing import Limits, Start, TextWriter, longest

MAX_QUESTION, MAX_ANSWER = 192, 256  # tokens
MIN_ANSWER = 8  # tokens; shorter answers teach nothing
ASKING = MAX_QUESTION / (MAX_QUESTION + MAX_ANSWER)  # share of the time of a batch
BATCH = "batch"
MAX_TEXTS = 20_000
BATCHES, CPU_BATCH = {"cuda": 1024}, 16  # texts that are written at a time


def training_texts(
    context: BuildContext, model: Any, file: Path, *, seconds: float, seed: int
) -> list[TargetText]:
    """Return texts that the target, loaded as `model`, writes in `seconds`, or those kept in `file`.

    A killed training has left them there. Raises BadValue if none is written in time.
    """
    if file.is_file():
        texts = [TargetText(*json.loads(line)) for line in file.read_text("utf-8").splitlines()]
        if texts:
            return texts
    batches = write_texts(
        model,
        context.weights("target"),
        context.chat_wrappers(),
        context.stop_tokens(),
        prompts=context.training_prompts(),
        seconds=seconds,
        max_texts=MAX_TEXTS,
        batch=BATCHES.get(model.device.type, CPU_BATCH),
        seed=seed,
    )
    texts = []
    with context.step("The target writes texts", unit="text"):
        for batch in batches:
            texts += batch
            context.advance(len(batch))
    if not texts:
        raise BadValue("The target wrote no texts in time", "Give the training more minutes")
    with atomic.file(file) as out:
        out.write("".join(json.dumps(text) + "\n" for text in texts).encode())
    return texts


def write_texts(
    model: Any,
    path: Path,
    chat_wrappers: Sequence[tuple[Tokens, Tokens]],
    stop_tokens: Sequence[int],
    *,
    prompts: Sequence[Tokens] = (),
    seconds: float,
    max_texts: int,
    batch: int,
    seed: int,
) -> Iterator[list[TargetText]]:
    """Yield texts that `model`, the one at `path`, writes, for `seconds` or until there are `max_texts`.

    `chat_wrappers` are the tokens before and after a user's message, for each kind of user. Given `prompts`
    are answered instead of invented questions. Questions are sampled with `seed`; answers are greedy, like
    most texts that a draft will guess. The decoder of our own writes `batch` texts at a time if it
    computes the model's family; if not, transformers does.
    """
    limit = TimeLimit(seconds)
    if limit.left() <= 0:
        return
    starts = [Start(prompt) for prompt in prompts] or [Start(*wrapper) for wrapper in chat_wrappers]
    try:
        decoder = of_model(model, path, longest(starts, MAX_QUESTION) + MAX_ANSWER)
    except UnsupportedModel:
        yield from _by_transformers(
            model, chat_wrappers, stop_tokens, prompts, limit, max_texts=max_texts, batch=batch, seed=seed
        )
        return
    writer = TextWriter(decoder, batch, stop_tokens, Limits(MAX_QUESTION, MAX_ANSWER), seed)
    wanted, written = min(max_texts, len(prompts) or max_texts), -1
    while written and wanted:  # some are too short to be kept
        written = 0
        for texts in writer.write(list(islice(cycle(starts), wanted)), lambda: limit.left() > 0):
            kept = [text for text in texts if len(text.answer) >= MIN_ANSWER]
            written += len(kept)
            yield kept
        wanted = 0 if prompts or limit.left() <= 0 else wanted - written


def _by_transformers(
    model: Any,
    chat_wrappers: Sequence[tuple[Tokens, Tokens]],
    stop_tokens: Sequence[int],
    prompts: Sequence[Tokens],
    limit: TimeLimit,
    *,
    max_texts: int,
    batch: int,
    seed: int,
) -> Iterator[list[TargetText]]:
    """Yield batches of texts that end together.

    No batch begins that is likely to end too late, and a first one that would is cut short.
    """
    import torch

    torch.manual_seed(seed)
    written, number = 0, 0
    while written < max_texts and limit.fits(limit.longest(BATCH)):
        count = min(batch, max_texts - written)
        given = [list(prompt) for prompt in prompts[number * batch :][:count]]
        if prompts and not given:
            return
        invented = range(number * batch, number * batch + count * (not prompts))
        wrappers = [chat_wrappers[at % len(chat_wrappers)] for at in invented]
        number += 1
        with limit.measured(BATCH):
            texts = _answered(model, given, wrappers, stop_tokens, limit)
        written += len(texts)
        yield texts


def _answered(
    model: Any,
    given: list[list[int]],
    wrappers: Sequence[tuple[Tokens, Tokens]],
    stop_tokens: Sequence[int],
    limit: TimeLimit,
) -> list[TargetText]:
    """Return the model's answers to `given` prompts, or else to ones that it invents in `wrappers`."""
    prompts = given or _invent_prompts(model, wrappers, stop_tokens, limit.left() * ASKING)
    answers = _generate(
        model, prompts, stop_tokens, MAX_ANSWER, sampled=False, seconds=limit.left(), keep_stop=True
    )
    return [
        TargetText(prompt, answer)
        for prompt, answer in zip(prompts, answers, strict=True)
        if len(answer) >= MIN_ANSWER
    ]


def _invent_prompts(
    model: Any, wrappers: Sequence[tuple[Tokens, Tokens]], stop_tokens: Sequence[int], seconds: float
) -> list[list[int]]:
    """Let the model write a user's message in each of `wrappers`; empty messages are left out."""
    starts = [list(before) for before, _ in wrappers]
    questions = _generate(model, starts, stop_tokens, MAX_QUESTION, sampled=True, seconds=seconds)
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
    seconds: float,
    keep_stop: bool = False,
) -> list[list[int]]:
    """Return the model's continuation of each prompt, without its stop token unless `keep_stop`.

    After some `seconds` all continuations end where they are.
    """

    def run(batch: list[list[int]]) -> list[list[int]]:
        sampling = {"do_sample": True, "temperature": 1.0, "top_p": 0.95, "top_k": 0} if sampled else {}
        options = sampling | {"max_new_tokens": max_new_tokens, "max_time": seconds}
        outputs = _generate_batch(model, batch, stop_tokens, options)
        return [_until_stop(tokens, stop_tokens, keep_stop) for tokens in outputs]

    return run_in_halves(prompts, run)


def _generate_batch(
    model: Any, prompts: list[list[int]], stop_tokens: Sequence[int], options: dict[str, Any]
) -> list[list[int]]:
    import torch
    from transformers import GenerationConfig

    if not prompts:
        return []
    width, padding = max(map(len, prompts)), stop_tokens[0] if stop_tokens else 0
    masks = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    padded = [[padding] * (width - len(prompt)) + prompt for prompt in prompts]
    config = GenerationConfig(eos_token_id=list(stop_tokens) or None, pad_token_id=padding, **options)
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


class TextBatch(NamedTuple):
    """Texts as torch tensors, padded on the right.

    `tokens` and `mask` are [texts, tokens]; `counted` [texts, tokens - 1] tells where the next token belongs
    to an answer.
    """

    tokens: Any
    mask: Any
    counted: Any


def batch_of(texts: Sequence[TargetText], device: Any) -> TextBatch:
    """Return texts as a batch on a torch device."""
    import torch

    width = max(map(length, texts))
    tokens = torch.zeros(len(texts), width, dtype=torch.long)
    mask, counted = torch.zeros_like(tokens), torch.zeros(len(texts), width - 1, dtype=torch.bool)
    for row, (prompt, answer) in enumerate(texts):
        end = len(prompt) + len(answer)
        tokens[row, :end] = torch.tensor([*prompt, *answer])
        mask[row, :end] = 1
        counted[row, len(prompt) - 1 : end - 1] = True
    return TextBatch(tokens.to(device), mask.to(device), counted.to(device))
