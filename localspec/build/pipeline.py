"""Run the steps of a build plan and add the result to the library; a killed build resumes."""

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
from localspec.build.checks import evaluate
from localspec.build.context import PLAN, WEIGHTS, CalibrationPrompt, Workspace, check_text
from localspec.build.gain import no_gain
from localspec.disk import atomic
from localspec.drafting.build_step import Artifact, BuildStep
from localspec.errors import BadValue, VocabularyMismatch
from localspec.formats.files import read_json
from localspec.formats.graph import ir
from localspec.library import Library, Manifest, Progress, StoredModel, catalogue, check_name, storage
from localspec.library.importing import convert
from localspec.library.importing.completeness import sizes_of
from localspec.library.locks import locked
from localspec.library.model import write_json
from localspec.runtime.drafts import same_vocabulary
from localspec.runtime.loading import LoadSpec

CARD, DONE = "card.json", "done.json"
FROM_FLOAT16 = ("quantize", "heal")  # steps that start from float16 weights; others take a graph as it is
BUILT = "built:"  # prefix of the manifest's source of a built model


@dataclass(frozen=True)
class BuildPlan:
    """Builds a draft for `target` from the model `source`, by `steps` like `prune:layers=22`.

    If it is no `draft`, the result replaces the model itself. A draft that gains nothing is kept under its
    name only, and `--draft auto` does not choose it. The result is checked, and its costs are measured, in
    `engine`.
    """

    name: str
    target: str
    source: str
    steps: tuple[str, ...]
    draft: bool = True
    engine: str = "openvino"
    minutes: float | None = None  # that it is known to take

    def check(self) -> None:
        """Raise UnknownName or BadValue for a wrong name, step or option, before anything is loaded."""
        check_name(self.name)
        if catalogue.lookup(self.name):
            raise BadValue(f"`{self.name}` is a name of the catalogue", "Choose another `--name`")
        for text in self.steps:
            plugins.parse("steps", text)


def build(
    plan: BuildPlan, prompts: Sequence[CalibrationPrompt], library: Library, progress: Progress
) -> StoredModel:
    """Build the model of `plan` and add it to the library; the target answers `prompts` for its evaluation.

    Intermediate results stay in the data folder until the build is complete, so a killed build resumes.
    Raises UnknownName, BadValue, VocabularyMismatch, TooLittleMemory, StorageError, the errors of the steps,
    and BrokenModel if the result fails its checks; then nothing is added.
    """
    plan.check()
    if library.find(plan.name):
        raise BadValue(f"A model called `{plan.name}` already exists", "Choose another `--name`")
    target, source = (
        library.resolve(name, progress, _formats(plan.engine)) for name in (plan.target, plan.source)
    )
    check_text(target, source)
    if not same_vocabulary(target, source):
        raise VocabularyMismatch(
            f"`{source.name}` and `{target.name}` have different vocabularies",
            "Give `--from` a model of the same family",
        )
    building = library.home / "building"
    with locked(building, plan.name, progress):
        steps = [plugins.parse("steps", text) for text in plan.steps]
        work_folder = _prepare(building / plan.name, plan, prompts, target, source, progress)
        engine = LoadSpec(plugins.parse("engines", plan.engine), target)
        minutes = plan.minutes or resources.estimate_minutes(target, source, steps, len(prompts))
        progress.say(_announcement(plan, target, source, minutes))
        resources.check(source, engine, steps, work_folder, progress)
        context = Workspace(target, source, prompts, library, progress, work_folder, plan.engine)
        artifact = _run_steps(plan, steps, source, context)
        facts = evaluate(artifact, source, context, draft=plan.draft)
        facts |= {"parent": source.name, "date": date.today().isoformat()}
        facts |= {"target": target.name} if plan.draft else {}
        registered = plan.draft and _gains(plan, target, facts, progress)
        fill = _copy_into_library(plan, artifact, source, library.reference(target), facts, registered)
        built = library.add(plan.name, fill, progress)
        shutil.rmtree(work_folder)
    return built


def _announcement(plan: BuildPlan, target: StoredModel, source: StoredModel, minutes: float) -> str:
    """Return what is built from which model, and how long that takes."""
    purpose = f" as a draft for `{target.name}`" if plan.draft else ""
    duration = "a minute" if minutes <= 1 else f"{minutes:.0f} minutes"
    return f"Building `{plan.name}` from `{source.name}`{purpose}; it takes about {duration} on two cores"


def card(model: StoredModel) -> dict[str, Any]:
    """Return the card of a built model, empty for another."""
    file = model.folder / CARD
    return read_json(file) if file.is_file() else {}


def _formats(engine: str) -> tuple[str, ...]:
    """Return "openvino", because every build starts from a graph, and the formats that an engine reads."""
    return tuple(dict.fromkeys(["openvino", *plugins.part("engines", engine).made_by.forms]))


def _prepare(
    work_folder: Path,
    plan: BuildPlan,
    prompts: Sequence[CalibrationPrompt],
    target: StoredModel,
    source: StoredModel,
    progress: Progress,
) -> Path:
    """Return the folder of a build, emptied if the plan, its inputs or the versions have changed."""
    key = {
        "prompts": prompts,
        "engine": plan.engine,
        "plan": [plan.target, plan.source, list(plan.steps)],
        "files": [model.manifest.digests for model in (target, source)],
        "versions": [version(name) for name in ("localspec", "openvino")],
    }
    if not emptied_for(key, work_folder) and any(work_folder.glob(f"*/{DONE}")):
        progress.say(f"Resuming the build of `{plan.name}`")
    return work_folder


def emptied_for(key: dict[str, Any], work_folder: Path) -> bool:
    """Empty the folder of a build if it is new, or was for another plan than `key`; return whether it was."""
    text, file = json.dumps(key, sort_keys=True), work_folder / PLAN
    if file.is_file() and file.read_text("utf-8") == text:
        return False
    shutil.rmtree(work_folder, ignore_errors=True)
    with storage.storage_errors(work_folder.parent):
        work_folder.mkdir(parents=True)
    storage.write_atomically(file, text)
    return True


def _run_steps(
    plan: BuildPlan, specs: Sequence[plugins.Spec], source: StoredModel, context: Workspace
) -> Artifact:
    """Check and run all steps, each unless an interrupted build has completed it."""
    steps: list[BuildStep] = [spec.make(context) for spec in specs]
    if layers := source.layer_count():
        for step in steps:
            step.check(layers)
    plain = any(spec.name in FROM_FLOAT16 for spec in specs)
    work_folder = context.work_folder
    artifact = _once(work_folder / "0-weights", lambda into: _write_source(source, into, context, plain))
    for number, (spec, step) in enumerate(zip(specs, steps, strict=True), 1):
        with context.step(f"{number} of {len(steps)}: {plan.steps[number - 1]}"):
            artifact = _once(work_folder / f"{number}-{spec.name}", _running(step, artifact))
    return artifact


def _once(folder: Path, make: Callable[[Path], Artifact]) -> Artifact:
    """Return the artifact in `folder`, made first unless it is complete."""
    file = folder / DONE
    if not file.is_file():
        with storage.storage_errors(folder.parent), atomic.folder(folder) as partial:
            artifact = make(partial)
            storage.write_atomically(partial / DONE, json.dumps(artifact.facts))
    return Artifact(folder, json.loads(file.read_text("utf-8")))


def _running(step: BuildStep, source: Artifact) -> Callable[[Path], Artifact]:
    return lambda into: step.run(source, into)


def _write_source(source: StoredModel, into: Path, context: Workspace, plain: bool) -> Artifact:
    """Write the graph of the source: in float16 if `plain`, else as it is.

    A source that is only a graph is always taken as it is.
    """
    file = source.files_in("gguf") or source.files_in("safetensors")
    if file is None or (not plain and source.files_in("openvino")):
        sizes = source.manifest.sizes or sizes_of(source.folder)  # none are known of a folder used in place
        storage.check_free_space(into, sum(sizes.values()))
        for name in sizes:
            if not name.endswith((".gguf", ".safetensors")):
                shutil.copyfile(source.folder / name, into / name)
        return Artifact(into, {"precision": source.manifest.precision})
    write_configs = convert.from_gguf if file.is_file() else convert.from_folder
    facts = write_configs(file, into) | ir.import_plain(file, into, context)
    return Artifact(into, {key: facts[key] for key in ("precision", "architecture", "context")})


def _gains(plan: BuildPlan, target: StoredModel, card: dict[str, Any], progress: Progress) -> bool:
    """Return whether a draft makes its target faster; if not, tell why and how to use it all the same."""
    reason = no_gain(card)
    if reason is not None:
        progress.say(
            f"`{plan.name}` gains nothing: {reason}. `--draft auto` leaves it out, `--draft {plan.name}` uses"
            f" it for `{target.name}`"
        )
    return reason is None


def _copy_into_library(
    plan: BuildPlan,
    artifact: Artifact,
    source: StoredModel,
    target: str,
    card: dict[str, Any],
    registered: bool,
) -> Callable[[Path], Manifest]:
    """Return a function that writes the built model and its card into a folder of the library.

    A draft that is `registered` is one of the target's drafts, which `--draft auto` chooses from.
    """

    def fill(into: Path) -> Manifest:
        for path in artifact.folder.iterdir():
            if path.is_file() and path.name != DONE:
                shutil.copyfile(path, into / path.name)
        write_json(into / CARD, card)
        return Manifest(
            name=plan.name,
            source=BUILT + source.name,
            target=target if registered else "",
            precision=str(card.get("precision", "")),
            weights=str(card.get(WEIGHTS, "")),
            architecture=source.manifest.architecture,
            context=source.manifest.context,
            history=[f"built from {source.name}" + f" for {target}" * plan.draft, *plan.steps],
        )

    return fill
