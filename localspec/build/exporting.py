"""Write a model of the library as files for other programs, in a process of its own."""

from __future__ import annotations

import signal
from pathlib import Path

from localspec import devices, plugins
from localspec.build.context import check_text
from localspec.build.pipeline import BUILT
from localspec.children import JsonChild, Reply
from localspec.disk import atomic, given
from localspec.errors import BadValue, ChildFailed, TooLittleMemory, UnsupportedModel
from localspec.formats.model_file import count_parameters
from localspec.library import Library, Progress, StoredModel, storage

STEP, END = "step", "end"  # reports of a child: a step begins, or the innermost one ends
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


def export(model: StoredModel, step: str, into: Path, library: Library, progress: Progress) -> Path:
    """Write `model` into the new folder `into` by `step`, such as `export:to=gguf`, in a child process.

    The folder appears only once it is complete. Raises the errors of the step, BadValue if the folder exists,
    TooLittleMemory, UnsupportedModel for one with eyes, and ChildFailed if the process crashed.
    """
    check_text(model)
    spec, into = plugins.parse("steps", step), given.path_of(into)
    if into.exists():
        raise _taken(into)
    needed, free = memory_needed(model, library, str(spec.options["to"])), devices.free_memory()
    if needed > free:
        raise TooLittleMemory(model.name, needed, free)
    try:
        with storage.storage_errors(into.parent):
            into.parent.mkdir(parents=True, exist_ok=True)
            with atomic.folder(into) as partial:
                _in_child(
                    [library.reference(model), str(model.folder), step, str(partial.absolute())], progress
                )
    except FileExistsError:
        raise _taken(into) from None
    except ChildFailed as error:
        if error.code != -signal.SIGKILL:
            raise
        raise TooLittleMemory(model.name, needed, devices.free_memory()) from None  # the system killed it
    return into


def _taken(into: Path) -> BadValue:
    return BadValue(f"`{into}` already exists", "Choose another `--output`, or move it away")


def _in_child(request: list[str], progress: Progress) -> None:
    """Let a child process do an export; report its progress, and raise its errors."""
    child = JsonChild("export", "localspec.build.export_process")
    try:
        _follow(child, child.ask(request), progress)
    finally:
        child.end()


def _follow(child: JsonChild, reply: Reply, progress: Progress) -> None:
    """Pass reports on, from `reply` to the last one, or to the end of the step that they belong to."""
    while (report := reply.get("report", END)) != END:
        if report == STEP:
            with progress.step(*reply["arguments"]):
                _follow(child, child.reply(), progress)
        else:
            getattr(progress, report)(*reply["arguments"])
        reply = child.reply()
