"""Estimate the memory, disk and time that a build needs, from the headers of its files, before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from localspec import devices
from localspec.build.context import EVALUATED
from localspec.errors import TooLittleMemory
from localspec.formats.model_file import count_parameters
from localspec.library import Progress, StoredModel, storage
from localspec.library.progress import folder_bytes
from localspec.plugins import Spec
from localspec.runtime.loading import LoadSpec

FLOAT32, FLOAT16 = 4, 2  # bytes per weight
MARGIN = 1.1  # for scales, tokenizers and other files
SECONDS = 200e-9  # of a build per parameter of both models, on two cores of an AMD EPYC
SEARCH = 2  # times as long if layers, tokens or bits are searched for, or weights are calibrated
USUAL_PROMPTS = 12  # of the default suite


def check(
    source: StoredModel, target: LoadSpec, steps: Sequence[Spec], folder: Path, progress: Progress
) -> None:
    """Report the needs of a build; raises TooLittleMemory and StorageError if there is less.

    Steps hold the source several times, the check at the end holds the target and the result. Files that an
    interrupted build left in `folder` need no space again. Healing holds both models in float32.
    """
    count = _count(source)
    disk = max(0, int(MARGIN * sum(_stage_bytes(count, steps))) - folder_bytes(folder))
    memory = devices.ENGINE_OVERHEAD + max(3 * FLOAT16 * count, target.memory + FLOAT16 * count)
    if any(step.name == "heal" for step in steps):
        memory += FLOAT32 * (_count(target.model) + count)
    free_memory, free_disk = devices.free_memory(), storage.free_bytes(folder)
    progress.say(
        f"The build needs about {memory / 1e9:.1f} GB of memory ({free_memory / 1e9:.1f} GB are free) and"
        f" {disk / 1e9:.1f} GB of disk ({free_disk / 1e9:.1f} GB are free)"
    )
    if memory > free_memory:
        raise TooLittleMemory(source.name, memory, free_memory)
    storage.check_free_space(folder, disk)


def estimate_minutes(target: StoredModel, source: StoredModel, steps: Sequence[Spec], prompts: int) -> float:
    """Return about how many minutes a build with `prompts` takes on two cores."""
    searches = any(step.name == "prune" or "auto" in step.options.values() for step in steps)
    calibrates = any(step.options.get("method", "rtn") != "rtn" for step in steps)
    seconds = SECONDS * (_count(target) + _count(source)) * min(prompts, EVALUATED) / USUAL_PROMPTS
    healing = sum(
        float(step.options.get("minutes", step.part.settings["minutes"].default))
        for step in steps
        if step.name == "heal"
    )
    return seconds * (SEARCH if searches or calibrates else 1) / 60 + healing


def _stage_bytes(count: int, steps: Sequence[Spec]) -> list[int]:
    """Return the bytes of the weights after each stage, and once more for the copy in the library."""
    size = FLOAT16 * count
    sizes = [size]
    for step in steps:
        if step.name == "quantize":
            bits = step.options.get("bits", "4")
            size = count * (int(bits) if bits.isdigit() else 8) // 8  # `auto` takes at most 8
        elif step.name == "heal":
            size = FLOAT16 * count
        sizes.append(size)
    return [*sizes, size]


def _count(model: StoredModel) -> int:
    """Return the number of a model's parameters; of one that is only a graph, as if each had 8 bits."""
    path = model.files_in("safetensors") or model.files_in("gguf")
    return count_parameters(path) if path else sum(model.manifest.sizes.values())
