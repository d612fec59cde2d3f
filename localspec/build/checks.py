"""Is a model that was built sound, and what is it worth? Nothing that is not sound gets into the library."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec import plugins
from localspec.build.context import CONTEXT, Workspace
from localspec.core.contracts import Drafter, Engine
from localspec.core.parity import ROUNDED, first_difference
from localspec.core.rewind_check import rewind_fault
from localspec.core.sampler import Sampler, Sampling
from localspec.core.types import LazyGuess, Logits, Step, Tokens
from localspec.drafting.agreement import Agreed, answered
from localspec.drafting.build_step import Artifact, Text
from localspec.drafting.pass_costs import by_turns, pass_milliseconds, seconds
from localspec.drafting.speedup import worth
from localspec.errors import BrokenModel
from localspec.library import Model, compiled_folder
from localspec.runtime.choice import OFF
from localspec.runtime.generation import Runtime, greedy

SANE, SANE_DRAFT = 1.5, 10.0  # times the source's perplexity at most: beyond it a model talks nonsense
KEPT_OUT = -60000.0  # logits below it are of tokens that a draft never guesses
RACED = 8  # texts that a draft races over at most: all of them would take half of a build
WARMING = 8  # tokens of an answer that does not count
TOLD = ("localspec", "openvino", "nncf", "torch")  # whose versions a card has


def check(made: Artifact, source: Model, site: Workspace, *, draft: bool) -> dict[str, Any]:
    """Return the card of what was `made` of `source`: what it agrees with, costs, promises and gives.

    A `draft` races against plain decoding. Raises BrokenModel for what is no language model, or cannot take
    guesses back.
    """
    site.step("Checking what was made")
    texts = site.texts()
    _, before = judged(texts, reader(site.engine(source)))
    try:
        engine = site.engine_of(made)
        if fault := rewind_fault(engine.session(), engine.vocab):
            raise BrokenModel(f"It cannot take guesses back: {fault}")
        stood, after = judged(texts, reader(engine))
        ratio = after / before
        if not ratio <= (SANE_DRAFT if draft else SANE):
            raise BrokenModel(
                f"It is no language model any more: its perplexity is {ratio:.1f} times that before",
                "Keep more layers",
            )
        runtime = site.runtime(OFF) if draft else None
        passes, own = _costs(site, engine, runtime)
        promised = worth(stood, own[:2], passes)
        found = dict(made.facts) | {
            "agreement": _share(stood),
            "agreement_by_class": _by_class(site.kinds(), stood),
            "cost_ratio": round(own[0] / passes[0], 4),
            "predicted": promised._asdict(),
            "perplexity_ratio": round(ratio, 4),
            "versions": {name: number for name in TOLD if (number := _version(name))},
        }
        if runtime and promised.depth:
            site.step("Racing the draft against plain decoding")
            found["adaptive"] = raced(runtime, engine, promised.depth, texts)
    finally:
        shutil.rmtree(compiled_folder(made.folder), ignore_errors=True)
    return found


def reader(engine: Engine) -> Callable[[Tokens], Logits]:
    """Return a function from a text to an engine's logits [tokens, vocab] of it."""
    session = engine.session()

    def read(tokens: Tokens) -> Logits:
        session.rewind(0)
        return session.forward(tokens, len(tokens))

    return read


def judged(texts: Sequence[Text], read: Callable[[Tokens], Logits]) -> tuple[Agreed, float]:
    """Tell for each answered token whether it is the likeliest, and return the perplexity of the answers.

    That is exp of the mean loss; tokens that are never guessed are left out.
    """
    stood: Agreed = []
    losses: list[float] = []
    for answer, rows in answered(texts, read):
        each, likeliest = np.arange(len(rows)), rows.argmax(axis=1)
        chosen, highest = rows[each, answer], rows[each, likeliest]
        stood.append(likeliest == answer)
        sums = np.log(np.exp(rows - highest[:, None]).sum(axis=1)) + highest
        losses += (sums - chosen)[chosen > KEPT_OUT].tolist()
    return stood, float(np.exp(np.mean(losses)))


def raced(runtime: Runtime, engine: Engine, depth: int, texts: Sequence[Text]) -> dict[str, Any]:
    """Return how many times as fast the target answers with `depth` guesses a round of a draft's `engine`.

    Plain and drafted answers take turns, text by text, after a few tokens of the first one to warm up. Target
    and draft read prompts before the clock starts. Of many texts some are taken, as far apart as may be.
    """
    texts = texts[:: -(-len(texts) // RACED)]
    none = plugins.parse("drafters", "none").make(runtime.target)
    drafter = plugins.parse("drafters", "draft_model:name=draft").make(runtime.target, engine, runtime.engine.vocab)
    spent = {"plain": 0.0, "drafted": 0.0}
    other = 0
    for number, (prompt, answer) in enumerate([texts[0], *texts]):
        answers = {}
        for name, one in (("plain", none), ("drafted", drafter)):
            _read(one, prompt[:-1])
            room = len(answer) if number else min(WARMING, len(answer))
            steps = greedy(runtime, prompt, one, guesses=depth, max_new_tokens=room)
            spent[name] += _seconds(steps) if number else 0.0
            answers[name] = [token for last in steps for token in last.tokens]
        parted = first_difference(
            answers["plain"], answers["drafted"], engine=runtime.engine, prompt=prompt, tolerance=ROUNDED
        )
        other += bool(number and parted and not parted.tie)
    speed_up = spent["plain"] / spent["drafted"]
    return {"depth": depth, "speed_up": round(speed_up, 4), "texts": len(texts), "other_texts": other}


def _costs(site: Workspace, engine: Engine, target: Runtime | None) -> tuple[Sequence[float], Sequence[float]]:
    """Return the seconds of passes over 1, 2, ... tokens of target and `engine`, by turns if it may be."""
    if target is None:
        return site.passes(), seconds(pass_milliseconds(engine, CONTEXT))
    passes, own = by_turns([target.engine, engine], CONTEXT)
    return seconds(passes), seconds(own)


def _read(drafter: Drafter, tokens: Tokens) -> None:
    step = next(iter(drafter.propose(tokens, Sampler(Sampling()))), None)
    if isinstance(step, LazyGuess):
        step.draw()


def _seconds(steps: Sequence[Step]) -> float:
    return sum(last.draft_seconds + last.target_seconds for last in steps)


def _share(stood: Sequence[NDArray[np.bool_]]) -> float:
    return round(float(np.concatenate(list(stood)).mean()), 4)


def _by_class(kinds: Sequence[str], stood: Sequence[NDArray[np.bool_]]) -> dict[str, float]:
    of = {kind: [one for other, one in zip(kinds, stood, strict=True) if other == kind] for kind in kinds}
    return {kind: _share(found) for kind, found in of.items()}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
