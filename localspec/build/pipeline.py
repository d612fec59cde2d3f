"""A plan -> its steps in order -> a model in the library; a build that was killed goes on later."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from localspec import plugins
from localspec.build import resources
from localspec.build.checks import check
from localspec.build.context import PLAN, WEIGHTS, CalibrationPrompt, Workspace
from localspec.drafting.build_step import Artifact, BuildStep
from localspec.errors import BadValue, VocabularyMismatch
from localspec.formats.files import read_json
from localspec.formats.graph import ir
from localspec.library import Library, Manifest, Model, Progress, catalogue, check_name, storage
from localspec.library.importing import convert
from localspec.library.locks import locked
from localspec.library.model import write_json
from localspec.runtime.drafts import same_vocabulary
from localspec.runtime.loading import LoadSpec

CARD, DONE = "card.json", "done.json"
ANEW = ("quantize", "heal")  # steps that start from float16; others take a graph as it is
BUILT = "built:"  # how the source of a model begins that was built here


@dataclass(frozen=True)
class Plan:
    """What is built: a draft for `target` out of the model `source`, by `steps` like `prune:layers=22`.

    Where it is no `draft`, it is the model itself in another form. It is checked in `engine`, whose costs are
    those that count.
    """

    name: str
    target: str
    source: str
    steps: tuple[str, ...]
    draft: bool = True
    engine: str = "openvino"

    def check(self) -> None:
        """Raise UnknownName or BadValue for a wrong name, step or option, before anything is loaded."""
        check_name(self.name)
        if catalogue.lookup(self.name):
            raise BadValue(f"`{self.name}` is a name of the catalogue", "Choose another `--name`")
        for text in self.steps:
            plugins.parse("steps", text)


def build(plan: Plan, prompts: Sequence[CalibrationPrompt], library: Library, progress: Progress) -> Model:
    """Build the model of `plan` and add it to the library; `prompts` are what its target answers for it.

    What is done of it stays in the data folder until all is, so a killed build goes on where it stopped.
    Raises what a wrong plan, models that do not fit together, too little disk and a draft that is not sound
    raise; no such model is ever in the library.
    """
    plan.check()
    if library.find(plan.name):
        raise BadValue(f"A model called `{plan.name}` already exists", "Choose another `--name`")
    target, source = (
        library.resolve(name, progress, _forms(plan.engine)) for name in (plan.target, plan.source)
    )
    if not same_vocabulary(target, source):
        raise VocabularyMismatch(
            f"`{source.name}` writes other tokens than `{target.name}`",
            "Give `--from` a model of the same family",
        )
    building = library.home / "building"
    with locked(building, plan.name, progress):
        steps = [plugins.parse("steps", text) for text in plan.steps]
        work = _begun(building / plan.name, plan, prompts, target, source, progress)
        resources.check(source, LoadSpec(plugins.parse("engines", plan.engine), target), steps, work, progress)
        site = Workspace(target, source, prompts, library, progress, work, plan.engine)
        todo: list[BuildStep] = [spec.make(site) for spec in steps]
        for step in todo if source.layer_count() else ():
            step.check(source.layer_count())
        anew = any(spec.name in ANEW for spec in steps)
        made = _once(work / "0-weights", lambda into: _weights(source, into, progress, anew))
        for number, (spec, step) in enumerate(zip(steps, todo, strict=True), 1):
            progress.step(f"{number} of {len(steps)}: {plan.steps[number - 1]}")
            made = _once(work / f"{number}-{spec.name}", _running(step, made))
        card = check(made, source, site, draft=plan.draft)
        card |= {"parent": source.name, "date": date.today().isoformat()}
        built = library.add(plan.name, _filling(plan, made, source, target, card), progress)
        shutil.rmtree(work)
    return built


def _forms(engine: str) -> tuple[str, ...]:
    """Return the forms that an engine reads; every build begins at a graph, too."""
    forms: tuple[str, ...] = plugins.part("engines", engine).made_by.forms
    return forms if "openvino" in forms else (*forms, "openvino")


def card(model: Model) -> dict[str, Any]:
    """Return what is known of a model that was built, empty for another."""
    file = model.folder / CARD
    return read_json(file) if file.is_file() else {}


def _begun(
    work: Path, plan: Plan, prompts: Sequence[CalibrationPrompt], target: Model, source: Model, progress: Progress
) -> Path:
    """Return the folder of a build, emptied unless all that it is made of is what it was."""
    key = {
        "prompts": prompts,
        "engine": plan.engine,
        "plan": [plan.target, plan.source, list(plan.steps)],
        "files": [model.manifest.digests for model in (target, source)],
        "versions": [version(name) for name in ("localspec", "openvino")],
    }
    text, file = json.dumps(key, sort_keys=True), work / PLAN
    if not file.is_file() or file.read_text("utf-8") != text:
        shutil.rmtree(work, ignore_errors=True)
        with storage.storage_errors(work.parent):
            work.mkdir(parents=True)
        storage.write_atomically(file, text)
    elif any(work.glob(f"*/{DONE}")):
        progress.say(f"Going on with the build of `{plan.name}`")
    return work


def _once(place: Path, make: Callable[[Path], Artifact]) -> Artifact:
    """Return what is at `place`, made there first unless it is whole."""
    file = place / DONE
    if not file.is_file():
        partial = place.with_name(f".{place.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        with storage.storage_errors(place.parent):
            partial.mkdir()
            made = make(partial)
            storage.write_atomically(partial / DONE, json.dumps(made.facts))
            storage.sync_folder(partial)
            partial.rename(place)
    return Artifact(place, json.loads(file.read_text("utf-8")))


def _running(step: BuildStep, source: Artifact) -> Callable[[Path], Artifact]:
    return lambda into: step.run(source, into)


def _weights(source: Model, into: Path, progress: Progress, anew: bool) -> Artifact:
    """Write the graph of a model: with weights in float16 when they are rounded `anew`, else as it is.

    What has no other form than a graph is taken as it is.
    """
    file = source.files_in("gguf") or source.files_in("safetensors")
    if file is None or (not anew and source.files_in("openvino")):
        storage.check_free_space(into, sum(source.manifest.sizes.values()))
        for name in source.manifest.sizes:
            if not name.endswith((".gguf", ".safetensors")):
                shutil.copyfile(source.folder / name, into / name)
        return Artifact(into, {"precision": source.manifest.precision})
    fill = convert.from_gguf if file.is_file() else convert.from_folder
    facts = fill(file, into) | ir.import_plain(file, into, progress)
    return Artifact(into, {key: facts[key] for key in ("precision", "architecture", "context")})


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
            source=BUILT + source.name,
            target=target.name if plan.draft else "",
            precision=str(card.get("precision", "")),
            weights=str(card.get(WEIGHTS, "")),
            architecture=source.manifest.architecture,
            context=source.manifest.context,
            history=[f"built from {source.name}" + f" for {target.name}" * plan.draft, *plan.steps],
        )

    return fill
