"""A model of the library is written as files for other engines and programs, in a process of its own."""

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
from localspec.library import Library, Model, Progress, storage

FLOAT, HALF = 4, 2  # bytes of a weight


def parent_of(model: Model, library: Library) -> Model:
    """Return the model whose weights `model` was cut from, itself for one that was not built here.

    Raises UnsupportedModel when it is not on disk any more.
    """
    while model.manifest.source.startswith(BUILT) and not (model.files_in("gguf") or model.files_in("safetensors")):
        name = model.manifest.source.removeprefix(BUILT)
        found = library.find(name)
        if found is None:
            raise UnsupportedModel(
                f"`{model.name}` was cut from `{name}`, which is not here any more",
                f"`localspec pull {name}`",
            )
        model = found
    return model


def memory(model: Model, library: Library, to: str) -> int:
    """Return the bytes of memory that writing `model` takes at most, about."""
    parent = parent_of(model, library)
    path = parent.files_in("safetensors") or parent.files_in("gguf")
    size = sum(model.manifest.sizes.values())
    if path is None:
        return size
    return size + count_parameters(path) * {"torch": FLOAT + HALF, "openvino": 2 * HALF, "gguf": HALF}[to]


def export(model: Model, step: str, into: Path, library: Library, tell: Callable[[], Progress]) -> Path:
    """Write `model` into the new folder `into` by `step`, such as `export:to=gguf`, in a child process.

    `tell` makes what the child reports to. The folder appears whole or not at all. Raises what the step
    raises, BadValue when the folder is there already, and TooLittleMemory when it takes more than there is.
    """
    spec = plugins.parse("steps", step)
    if into.exists():
        raise BadValue(f"`{into}` is there already", "Give another `--output`, or move it away")
    needed, free = memory(model, library, str(spec.options["to"])), devices.free_memory()
    if needed > free:
        raise TooLittleMemory(model.name, needed, free)
    partial = into.with_name(f".{into.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with storage.storage_errors(into.parent):
            partial.mkdir(parents=True)
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                pool.submit(_in_child, model.name, str(model.folder), step, partial, tell).result()
            storage.sync_folder(partial)
            partial.rename(into)
    except BrokenProcessPool:
        raise TooLittleMemory(model.name, needed, devices.free_memory()) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return into


def _in_child(name: str, folder: str, step: str, into: Path, tell: Callable[[], Progress]) -> None:
    library, progress = Library(), tell()
    model = library.find(name) or library.resolve(folder, progress)
    parent = parent_of(model, library)
    made: BuildStep = plugins.parse("steps", step).make(Workspace(model, parent, [], library, progress, into))
    made.run(Artifact(model.folder, card(model) or {"precision": model.manifest.precision}), into)
