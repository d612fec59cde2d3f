"""A plan -> its steps in order -> a model in the library; a build that was killed goes on later."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from localspec import plugins
from localspec.choosing import Choice, same_vocabulary
from localspec.core.contracts import Artifact, Rows, Step, Text, Tokens
from localspec.core.costs import pass_milliseconds
from localspec.core.cutting import worth
from localspec.core.judging import agreed
from localspec.core.proof import why_no_rewind
from localspec.core.sampler import Sampling
from localspec.errors import BadValue, BrokenModel, VocabularyMismatch
from localspec.formats.files import read_json
from localspec.formats.gguf import GgufFile
from localspec.formats.ir import import_weights
from localspec.formats.paged import read_stateful
from localspec.formats.reading import Reading
from localspec.formats.safetensors import SafetensorsFolder
from localspec.library import (
    Library,
    Manifest,
    Model,
    Progress,
    catalogue,
    check_name,
    compiled_folder,
    disk,
    importing,
)
from localspec.library.locks import locked
from localspec.library.model import GRAPH, write_json
from localspec.runtime import Runtime

CARD = "card.json"
ANSWER = 96  # tokens of an answer that the target writes for calibration
CONTEXT = 64  # tokens before passes whose costs are measured
SANE = 3.0  # times the source's perplexity at most: beyond it a cut is no language model
KEPT_OUT = -60000.0  # logits below it are of tokens that a draft never guesses
DONE, FACTS = "done.json", "facts.json"


@dataclass(frozen=True)
class Plan:
    """What is built: a draft for `target` out of the model `source`, by `steps` like `prune:layers=22`.

    Where it is no `draft`, it is the model itself in another form.
    """

    name: str
    target: str
    source: str
    steps: tuple[str, ...]
    draft: bool = True

    def check(self) -> None:
        """Raise UnknownName or BadValue for a wrong name, step or option, before anything is loaded."""
        check_name(self.name)
        if catalogue.lookup(self.name):
            raise BadValue(f"`{self.name}` is a name of the catalogue", "Choose another `--name`")
        for text in self.steps:
            plugins.parse("steps", text)


def build(plan: Plan, prompts: Sequence[str], library: Library, progress: Progress) -> Model:
    """Build the model of `plan` and add it to the library; `prompts` are what its target answers for it.

    What is done of it stays in the data folder until all is, so a killed build goes on where it stopped.
    Raises what a wrong plan, models that do not fit together, too little disk and a draft that is not sound
    raise; no such model is ever in the library.
    """
    plan.check()
    if library.find(plan.name):
        raise BadValue(f"There is a model called `{plan.name}` already", "Choose another `--name`")
    target, source = (library.resolve(name, progress) for name in (plan.target, plan.source))
    if not same_vocabulary(target, source):
        raise VocabularyMismatch(
            f"`{source.name}` writes other tokens than `{target.name}`",
            "Give `--from` a model of the same family",
        )
    building = library.home / "building"
    with locked(building, plan.name, progress):
        work = _begun(building / plan.name, plan, target, source, progress)
        site = Desk(target, prompts, library, progress, work)
        made = _once(work / "0-weights", lambda into: _weights(source, into, progress))
        whole = made
        for number, text in enumerate(plan.steps, 1):
            spec = plugins.parse("steps", text)
            progress.step(f"{number} of {len(plan.steps)}: {text}")
            step: Step = spec.make(site)
            made = _once(work / f"{number}-{spec.name}", _running(step, made))
        card = _checked(made, whole, site)
        built = library.add(plan.name, _filling(plan, made, source, target, card), progress)
        shutil.rmtree(work)
    return built


def card(model: Model) -> dict[str, Any]:
    """Return what is known of a model that was built, empty for another."""
    file = model.folder / CARD
    return read_json(file) if file.is_file() else {}


class Desk:
    """What the steps of one build ask for: texts of the target and its costs, found out once and kept."""

    def __init__(
        self, target: Model, prompts: Sequence[str], library: Library, progress: Progress, kept: Path
    ) -> None:
        self._target, self._prompts = target, prompts
        self._library, self._progress, self._kept = library, progress, kept

    def say(self, line: str) -> None:
        """Tell the user what was found."""
        self._progress.say(line)

    def step(self, title: str) -> None:
        """Begin a part of the work."""
        self._progress.step(title)

    def texts(self) -> Sequence[Text]:
        """Return the target's greedy answers to the prompts."""
        return [Text(*found) for found in self._found["texts"]]

    def passes(self) -> Sequence[float]:
        """Return the seconds of the target's passes over 1, 2, ... 16 tokens."""
        times = {int(width): spent / 1000 for width, spent in self._found["milliseconds"].items()}
        widths = range(1, max(times) + 1)
        known = sorted(times)
        return [_between(known, times, width) for width in widths]

    @cached_property
    def _found(self) -> dict[str, Any]:
        file = self._kept / FACTS
        if not file.is_file():
            disk.write_whole(file, json.dumps(self._answered()))
        found: dict[str, Any] = json.loads(file.read_text("utf-8"))
        return found

    def _answered(self) -> dict[str, Any]:
        """Let the target answer, with whatever draft it has by now, and measure its passes."""
        runtime = Runtime(self._target.name, Choice(engine="openvino"), self._library, self._progress)
        texts = []
        for number, prompt in enumerate(self._prompts, 1):
            self._progress.step(f"{self._target.name} answers prompt {number} of {len(self._prompts)}")
            tokens = runtime.question(prompt)
            answer, rounds = runtime.answer(tokens, sampling=Sampling(), max_tokens=ANSWER)
            for _ in rounds:
                pass
            texts.append((tokens, answer.token_ids))
        return {"texts": texts, "milliseconds": pass_milliseconds(runtime.engine, CONTEXT)}


def _between(known: Sequence[int], times: dict[int, float], width: int) -> float:
    """Return the cost of a width on the line between the two known ones around it."""
    low = max(at for at in known if at <= width)
    high = min(at for at in known if at >= width)
    share = (width - low) / (high - low) if high > low else 0.0
    return times[low] + share * (times[high] - times[low])


def _begun(work: Path, plan: Plan, target: Model, source: Model, progress: Progress) -> Path:
    """Return the folder of a build, emptied unless it is of this very plan, these models and this version."""
    key = {
        "plan": [plan.target, plan.source, list(plan.steps)],
        "files": [model.manifest.digests for model in (target, source)],
        "localspec": version("localspec"),
    }
    text, file = json.dumps(key, sort_keys=True), work / "plan.json"
    if not file.is_file() or file.read_text("utf-8") != text:
        shutil.rmtree(work, ignore_errors=True)
        with disk.writing(work.parent):
            work.mkdir(parents=True)
        disk.write_whole(file, text)
    elif any(work.glob(f"*/{DONE}")):
        progress.say(f"Going on with the build of `{plan.name}`")
    return work


def _once(place: Path, make: Callable[[Path], Artifact]) -> Artifact:
    """Return what is at `place`, made there first unless it is whole."""
    file = place / DONE
    if not file.is_file():
        partial = place.with_name(f".{place.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        with disk.writing(place.parent):
            partial.mkdir()
            made = make(partial)
            disk.write_whole(partial / DONE, json.dumps(made.facts))
            disk.sync_folder(partial)
            partial.rename(place)
    return Artifact(place, json.loads(file.read_text("utf-8")))


def _running(step: Step, source: Artifact) -> Callable[[Path], Artifact]:
    return lambda into: step.run(source, into)


def _weights(source: Model, into: Path, progress: Progress) -> Artifact:
    """Write the graph of a model with its weights in float16, or as it is where there is nothing else."""
    file = source.form("gguf") or source.form("safetensors")
    if file is None:
        disk.check_room(into, sum(source.manifest.sizes.values()))
        for path in source.folder.iterdir():
            if path.is_file():
                shutil.copyfile(path, into / path.name)
        return Artifact(into, {"precision": source.manifest.precision})
    opened = GgufFile.open(file) if file.is_file() else SafetensorsFolder.open(file)
    fill = importing.from_gguf if file.is_file() else importing.from_folder
    facts = fill(file, into) | dict(import_weights(opened, into, progress, plain=True))
    return Artifact(into, {key: facts[key] for key in ("precision", "architecture", "context")})


def _checked(made: Artifact, whole: Artifact, site: Desk) -> dict[str, Any]:
    """Return the card of a draft: what it agrees with, costs and promises; raises BrokenModel for none."""
    site.step("Checking the draft")
    texts, passes = site.texts(), site.passes()
    reading = Reading(read_stateful(made.folder / GRAPH))
    (stood,) = agreed(texts, reading.logits)
    guess = reading.seconds()
    before = Reading(read_stateful(whole.folder / GRAPH))
    ratio = perplexity(texts, reading.logits) / perplexity(texts, before.logits)
    if not ratio <= SANE:
        raise BrokenModel(
            f"The draft is no language model any more: its perplexity is {ratio:.1f} times that before",
            "Keep more layers",
        )
    if fault := _rewind_fault(made.folder):
        raise BrokenModel(f"The draft cannot take guesses back: {fault}")
    every = np.concatenate(stood)
    return dict(made.facts) | {
        "agreement": round(float(every.mean()), 4),
        "cost_ratio": round(guess / passes[0], 4),
        "predicted": worth(stood, guess, passes)._asdict(),
        "perplexity_ratio": round(ratio, 4),
    }


def perplexity(texts: Sequence[Text], read: Callable[[Tokens], Rows]) -> float:
    """Return exp of the mean loss on the answers of `texts`; tokens that are never guessed are left out."""
    losses: list[float] = []
    for text in texts:
        rows = read([*text.prompt, *text.answer[:-1]])[len(text.prompt) - 1 :]
        chosen = rows[np.arange(len(rows)), text.answer]
        highest = rows.max(axis=1)
        sums = np.log(np.exp(rows - highest[:, None]).sum(axis=1)) + highest
        losses += (sums - chosen)[chosen > KEPT_OUT].tolist()
    return float(np.exp(np.mean(losses)))


def _rewind_fault(folder: Path) -> str | None:
    """Load the draft in its engine and return why guesses cannot be taken back, None when they can."""
    try:
        engine = plugins.parse("engines", "openvino").make(folder)
        return why_no_rewind(engine.session(), engine.vocab)
    finally:
        shutil.rmtree(compiled_folder(folder), ignore_errors=True)


def _filling(
    plan: Plan, made: Artifact, source: Model, target: Model, card: dict[str, Any]
) -> Callable[[Path], Manifest]:
    def fill(into: Path) -> Manifest:
        for path in made.folder.iterdir():
            if path.is_file() and path.name != DONE:
                shutil.copyfile(path, into / path.name)
        write_json(into / CARD, card)
        return Manifest(
            name=plan.name,
            source=f"built:{source.name}",
            target=target.name if plan.draft else "",
            precision=str(card.get("precision", "")),
            architecture=source.manifest.architecture,
            context=source.manifest.context,
            history=[f"built from {source.name}" + f" for {target.name}" * plan.draft, *plan.steps],
        )

    return fill
