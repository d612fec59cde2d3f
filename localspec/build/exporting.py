"""Write a model of the library as files for other programs, in a process of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

from localspec import devices, plugins
from localspec.build.context import Workspace
from localspec.build.pipeline import BUILT, card
from localspec.drafting.build_step import Artifact, BuildStep
from localspec.errors import BadValue, TooLittleMemory, UnsupportedModel
from localspec.formats.model_file import count_parameters
from localspec.library import Library, Progress, StoredModel, storage

FLOAT32, FLOAT16 = 4, 2  # bytes per weight


def parent_of(model: StoredModel, library: Library) -> StoredModel:
    """Return the model that holds the original weights of `model`, itself if it was not built here.

    Raises UnsupportedModel if that model is not installed any more.
    """
    while model.manifest.source.startswith(BUILT):
        if model.files_in("gguf") or model.files_in("safetensors"):
            break
        name = model.manifest.source.removeprefix(BUILT)
        parent = library.find(name)
        if parent is None:
            raise UnsupportedModel(
                f"`{model.name}` was built from `{name}`, which is not installed any more",
                f"`localspec pull {name}`",
            )
        model = parent
    return model


def memory_needed(model: StoredModel, library: Library, to: str) -> int:
    """Return the approximate maximum of memory, in bytes, that the export takes."""
    parent = parent_of(model, library)
    path = parent.files_in("safetensors") or parent.files_in("gguf")
    size = sum(model.manifest.sizes.values())
    if path is None:
        return size
    per_weight = {"torch": FLOAT32 + FLOAT16, "openvino": 2 * FLOAT16, "gguf": FLOAT16}
    return size + count_parameters(path) * per_weight[to]


def export(
    model: StoredModel, step: str, into: Path, library: Library, make_progress: Callable[[], Progress]
) -> Path:
    """Write `model` into the new folder `into` by `step`, such as `export:to=gguf`, in a child process.

    `make_progress` makes the child's progress. The folder appears only once it is complete. Raises the errors
    of the step, BadValue if the folder exists, and TooLittleMemory.
    """
    spec = plugins.parse("steps", step)
    if into.exists():
        raise BadValue(f"`{into}` already exists", "Choose another `--output`, or move it away")
    needed, free = memory_needed(model, library, str(spec.options["to"])), devices.free_memory()
    if needed > free:
        raise TooLittleMemory(model.name, needed, free)
    partial = into.with_name(f".{into.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with storage.storage_errors(into.parent):
            partial.mkdir(parents=True)
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                pool.submit(_run, model.name, str(model.folder), step, partial, make_progress).result()
            storage.sync_folder(partial)
            partial.rename(into)
    except BrokenProcessPool:
        raise TooLittleMemory(model.name, needed, devices.free_memory()) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return into


def _run(name: str, folder: str, text: str, into: Path, make_progress: Callable[[], Progress]) -> None:
    """Run the export step `text`; called in the child process."""
    library, progress = Library(), make_progress()
    model = library.find(name) or library.resolve(folder, progress)
    context = Workspace(model, parent_of(model, library), [], library, progress, into)
    step: BuildStep = plugins.parse("steps", text).make(context)
    step.run(Artifact(model.folder, card(model) or {"precision": model.manifest.precision}), into)
