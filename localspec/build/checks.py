"""Check that a built model works, and measure what it gains; only then it is added to the library."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec import plugins
from localspec.build.context import CONTEXT, Workspace
from localspec.core.contracts import Drafter, DraftModel, Engine
from localspec.core.parity import first_difference
from localspec.core.rewind_check import rewind_fault
from localspec.core.sampler import Sampler, Sampling
from localspec.core.types import LazyGuess, Logits, Step, Tokens
from localspec.drafting.agreement import Agreement, answer_logits
from localspec.drafting.build_step import Artifact, TargetText
from localspec.drafting.pass_costs import compared_pass_milliseconds, pass_milliseconds, pass_seconds
from localspec.drafting.speedup import best_speedup
from localspec.errors import BrokenModel
from localspec.library import StoredModel, compiled_folder
from localspec.runtime.choice import OFF
from localspec.runtime.generation import Runtime, greedy

MAX_RATIO, MAX_DRAFT_RATIO = 1.5, 10.0  # perplexity over the source's: beyond it a model is broken
REMOVED = -60000.0  # logits below it are of tokens that were trimmed from the head
MAX_TEXTS = 8  # texts of a speed-up measurement: all of them would take half of a build
WARM_UP = 8  # tokens of an answer that is not measured
VERSIONED = ("localspec", "openvino", "nncf", "torch")  # packages whose versions a card lists


def evaluate(artifact: Artifact, source: StoredModel, context: Workspace, *, draft: bool) -> dict[str, Any]:
    """Return the card of a built model: its agreement, costs, and predicted and measured speed-up.

    The speed-up is measured for a `draft` only. Raises BrokenModel if the perplexity is too high or a rewind
    leaves traces.
    """
    texts = context.target_texts()
    try:
        with context.step("Checking the built model", 2 * len(texts), "text"):
            read = _counting(logits_reader(context.engine(source)), context)
            _, perplexity_before = agreement_and_perplexity(texts, read)
            engine = context.engine_of(artifact)
            agreement, perplexity = _checked(engine, texts, context)
        ratio = perplexity / perplexity_before
        if not ratio <= (MAX_DRAFT_RATIO if draft else MAX_RATIO):
            raise BrokenModel(
                f"The build broke the model: its perplexity rose {ratio:.1f} times", "Keep more layers"
            )
        runtime = context.runtime(OFF) if draft else None
        with context.step("Measuring the cost of passes"):
            target_seconds, draft_seconds = _pass_seconds(context, engine, runtime)
        predicted = best_speedup(agreement, draft_seconds[:2], target_seconds)
        card = dict(artifact.facts) | {
            "agreement": _share(agreement),
            "agreement_by_class": _by_class(context.kinds(), agreement),
            "cost_ratio": round(draft_seconds[0] / target_seconds[0], 4),
            "predicted": predicted._asdict(),
            "perplexity_ratio": round(ratio, 4),
            "versions": {name: number for name in VERSIONED if (number := _version(name))},
        }
        if runtime and predicted.draft_length:
            some = texts[:: -(-len(texts) // MAX_TEXTS)]
            with context.step("Measuring the speed-up over plain decoding", 1 + len(some), "text"):
                length = predicted.draft_length
                card["measured"] = measure_speedup(runtime, engine, length, some, context.advance)
    finally:
        shutil.rmtree(compiled_folder(artifact.folder), ignore_errors=True)
    return card


def _checked(engine: Engine, texts: Sequence[TargetText], context: Workspace) -> tuple[Agreement, float]:
    """Return agreement and perplexity of an engine; raise BrokenModel if it cannot rewind."""
    if fault := rewind_fault(engine.session(), engine.vocab):
        raise BrokenModel(f"The built model cannot rewind: {fault}")
    return agreement_and_perplexity(texts, _counting(logits_reader(engine), context))


def _counting(read: Callable[[Tokens], Logits], context: Workspace) -> Callable[[Tokens], Logits]:
    """Return `read`, with each text counted for the progress."""

    def counted(tokens: Tokens) -> Logits:
        logits = read(tokens)
        context.advance()
        return logits

    return counted


def logits_reader(engine: Engine) -> Callable[[Tokens], Logits]:
    """Return a function from a text to an engine's logits [tokens, vocab] of it."""
    session = engine.session()

    def read(tokens: Tokens) -> Logits:
        session.rewind(0)
        return session.forward(tokens, len(tokens))

    return read


def agreement_and_perplexity(
    texts: Sequence[TargetText], read: Callable[[Tokens], Logits]
) -> tuple[Agreement, float]:
    """Return for each answer token whether it is the likeliest, and the perplexity of the answers.

    The perplexity is exp of the mean loss, without tokens that were trimmed from the head.
    """
    agreement: Agreement = []
    losses: list[float] = []
    for answer, logits in answer_logits(texts, read):
        rows, likeliest = np.arange(len(logits)), logits.argmax(axis=1)
        of_answer, highest = logits[rows, answer], logits[rows, likeliest]
        agreement.append(likeliest == answer)
        sums = np.log(np.exp(logits - highest[:, None]).sum(axis=1)) + highest
        losses += (sums - of_answer)[of_answer > REMOVED].tolist()
    return agreement, float(np.exp(np.mean(losses)))


def measure_speedup(
    runtime: Runtime,
    engine: Engine,
    draft_length: int,
    texts: Sequence[TargetText],
    on_text: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Return the measured speed of the target with a draft's `engine`, relative to plain decoding.

    Plain and drafted answers take turns, text by text, after a few tokens of the first text as a warm-up.
    Prompts are read before the clock starts. `on_text` is called after each text and after the warm-up.
    """
    plain = plugins.parse("drafters", "none").make(runtime.target)
    draft = plugins.parse("drafters", "draft_model:name=draft")
    drafted = draft.make(runtime.target, DraftModel(engine, runtime.engine.vocab))
    seconds = {"plain": 0.0, "drafted": 0.0}
    different = 0
    for number, (prompt, answer) in enumerate([texts[0], *texts]):
        answers = {}
        for name, drafter in (("plain", plain), ("drafted", drafted)):
            _read_prompt(drafter, prompt[:-1])
            max_new_tokens = len(answer) if number else min(WARM_UP, len(answer))
            steps = greedy(runtime, prompt, drafter, guesses=draft_length, max_new_tokens=max_new_tokens)
            seconds[name] += _seconds(steps) if number else 0.0
            answers[name] = [token for step in steps for token in step.tokens]
        difference = first_difference(
            answers["plain"],
            answers["drafted"],
            engine=runtime.engine,
            prompt=prompt,
            tolerance=runtime.tolerance,
        )
        different += bool(number and difference and not difference.tie)
        on_text()
    return {
        "draft_length": draft_length,
        "speedup": round(seconds["plain"] / seconds["drafted"], 4),
        "texts": len(texts),
        "different_texts": different,
    }


def _pass_seconds(
    context: Workspace, engine: Engine, target: Runtime | None
) -> tuple[Sequence[float], Sequence[float]]:
    """Return the seconds of passes over 1, 2, ... tokens of the target and of `engine`.

    They take turns if the target is loaded.
    """
    if target is None:
        return context.target_pass_seconds(), pass_seconds(pass_milliseconds(engine, CONTEXT))
    of_target, of_engine = compared_pass_milliseconds([target.engine, engine], CONTEXT)
    return pass_seconds(of_target), pass_seconds(of_engine)


def _read_prompt(drafter: Drafter, tokens: Tokens) -> None:
    guess = next(iter(drafter.propose(tokens, Sampler(Sampling()))), None)
    if isinstance(guess, LazyGuess):
        guess.draw()


def _seconds(steps: Sequence[Step]) -> float:
    return sum(step.draft_seconds + step.target_seconds for step in steps)


def _share(agreement: Sequence[NDArray[np.bool_]]) -> float:
    return round(float(np.concatenate(list(agreement)).mean()), 4)


def _by_class(kinds: Sequence[str], agreement: Sequence[NDArray[np.bool_]]) -> dict[str, float]:
    texts = list(zip(kinds, agreement, strict=True))
    return {kind: _share([of_text for other, of_text in texts if other == kind]) for kind in kinds}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
