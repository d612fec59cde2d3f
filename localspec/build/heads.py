"""Train a head for a model, measure what it gains, and add it to the library; a killed training resumes."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from localspec.build.context import CONTEXT, CalibrationPrompt, Workspace, check_text
from localspec.build.pipeline import BUILT, CARD, emptied_for
from localspec.core.contracts import Engine, HeadSession
from localspec.disk import atomic
from localspec.drafting.speedup import chain_speedup
from localspec.drafting.time_limit import TimeLimit
from localspec.formats.heads.layout import Head
from localspec.formats.huggingface import loading, torch_devices
from localspec.library import Library, Manifest, Progress, StoredModel
from localspec.library.catalogue import K_FORCING, PIPO
from localspec.library.importing import addons, heads
from localspec.library.importing.add_local import check_available
from localspec.library.locks import locked
from localspec.library.model import FORMATS, write_json
from localspec.training.head_training import HeadPlan, train_head
from localspec.training.k_forcing.stages import KForcingPlan, train_hints
from localspec.training.pipo.pair_training import PipoPlan, train_pairs

TEXTS, CHECKPOINT = "head-texts.jsonl", "head.pt"
WRITING = 0.3  # share of the time in which texts are written
REPEATS = 16  # timed guesses


@dataclass(frozen=True)
class HeadBuild:
    """Trains the head `name` for the model `target` as `plan` says, whose seconds include writing texts.

    With the plan of K-Forcing it trains hints, with that of PIPO a model that reads pairs. Training runs on a
    torch `device`.
    """

    name: str
    target: str
    plan: HeadPlan | KForcingPlan | PipoPlan
    device: str = "auto"


def build_head(
    build: HeadBuild, prompts: Sequence[CalibrationPrompt], library: Library, progress: Progress
) -> StoredModel:
    """Train a head and add it to the library; the target answers `prompts` for its evaluation.

    Texts and checkpoints stay in the data folder until the head is complete, so a killed training resumes.
    Raises BadValue for a name that is taken, MissingExtra, UnknownDevice, TooLittleMemory, and
    UnsupportedModel for a target whose layers or scales heads do not support.
    """
    check_available(library, build.name)
    loading.check_extra()
    place = torch_devices.find_device(build.device)[1]
    target = library.resolve(build.target, progress, FORMATS)
    check_text(target)
    building = library.home / "building"
    with locked(building, build.name, progress):
        work = building / build.name
        key = {
            "head": [library.reference(target), asdict(replace(build.plan, seconds=0.0))],
            "prompts": list(prompts),
            "files": target.manifest.digests,
            "versions": [version(name) for name in ("localspec", "openvino")],
        }
        if not emptied_for(key, work) and any(work.glob("*.pt")):
            progress.say(f"Resuming the training of `{build.name}`")
        context = Workspace(target, target, prompts, library, progress, work)
        head = _trained(build, context, place)
        if isinstance(head, Head):
            _add(build, head, target, context, library, progress)
        else:
            _add_addon(build, head, target, library, progress)
        shutil.rmtree(work)
    found = library.find(build.name)
    assert found is not None
    return found


def _trained(build: HeadBuild, context: Workspace, place: Any) -> Head | addons.Stored:
    """Return the trained head or addon, with what the training found noted in it."""
    from localspec.training.texts import training_texts

    context.write_target_texts()  # before the time is counted, and the model takes memory
    path, plan, limit = context.weights("target"), build.plan, TimeLimit(build.plan.seconds)
    with torch_devices.memory_errors(place, f"training a head for {path.name}"):
        with context.step("Loading the target"):
            model = loading.load(path, place, torch_devices.natural_dtype(place))
        kept, writing = context.work_folder / TEXTS, plan.seconds * WRITING
        texts = training_texts(context, model, kept, seconds=writing, seed=plan.seed)
        seconds = min(plan.seconds * (1 - WRITING), max(limit.left(), 1.0))
        title = f"Training a head on {len(texts):,} texts, on {place}"
        held_out = context.target_texts()
        with context.step(title, round(seconds), "second"):
            if isinstance(plan, KForcingPlan):
                own = replace(plan, seconds=seconds)
                return train_hints(model, texts, held_out, own, context.work_folder, context)
            if isinstance(plan, PipoPlan):
                paired = replace(plan, seconds=seconds)
                return train_pairs(path, model, texts, held_out, paired, context.work_folder, context)
            return train_head(
                path,
                model,
                texts,
                held_out,
                context.stop_tokens(),
                replace(plan, seconds=seconds),
                context.work_folder / CHECKPOINT,
                context,
            )[0]


def _add(
    build: HeadBuild,
    head: Head,
    target: StoredModel,
    context: Workspace,
    library: Library,
    progress: Progress,
) -> None:
    """Write the head, measure its guesses where the target has a graph, and add it to the library."""
    reference, files = library.reference(target), context.work_folder / "head"
    shutil.rmtree(files, ignore_errors=True)
    with atomic.folder(files) as partial:
        heads.write(head, build.name, target, reference, partial, progress)
    card = head.about | {"target": reference, "parent": target.name, "date": date.today().isoformat()}
    chosen = True
    if target.files_in("openvino"):
        card |= _costs(context.engine(StoredModel("", files, Manifest(name="", source=""))), head, context)
        chosen = card["predicted"]["speedup"] > 1

    def fill(into: Path) -> Manifest:
        for file in files.iterdir():
            shutil.copyfile(file, into / file.name)
        write_json(into / CARD, card)
        return heads.about_head(build.name, BUILT + target.name, reference, into, chosen=chosen)

    library.add(build.name, fill, progress)


def _add_addon(
    build: HeadBuild, stored: addons.Stored, target: StoredModel, library: Library, progress: Progress
) -> None:
    """Write hints or weights of PIPO, and add them to the library."""
    reference, kind = library.reference(target), PIPO if isinstance(build.plan, PipoPlan) else K_FORCING
    card = stored.about | {"target": reference, "parent": target.name, "date": date.today().isoformat()}

    def fill(into: Path) -> Manifest:
        addons.write(stored, target, reference, into, progress)
        write_json(into / CARD, card)
        return addons.manifest(kind, build.name, BUILT + target.name, target)

    library.add(build.name, fill, progress)


def _costs(engine: Engine, head: Head, context: Workspace) -> dict[str, Any]:
    """Return the cost of a guess relative to a pass of the target, and the predicted speed-up."""
    passes = context.target_pass_seconds()
    with context.step("Measuring the cost of a guess"):
        guess = _guess_seconds(engine, head.shape.width)
    predicted = chain_speedup(head.about["acceptance"], passes, guess)
    return {"cost_ratio": round(guess / passes[0], 4), "predicted": predicted._asdict()}


def _guess_seconds(engine: Engine, width: int) -> float:
    """Return the median seconds of a guess of a head."""
    session = engine.session()
    assert isinstance(session, HeadSession)
    session.lead(np.zeros((CONTEXT, width), np.float32))
    session.forward(list(range(CONTEXT)), 1)
    times = []
    for _ in range(REPEATS):
        session.rewind(CONTEXT)
        started = perf_counter()
        session.lead(session.own()[-1:].copy())
        session.forward([1], 1)[0].argmax()
        times.append(perf_counter() - started)
    return median(times)
