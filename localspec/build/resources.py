"""What a build takes of memory and disk, known from the headers of its files before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from localspec import devices
from localspec.errors import TooLittleMemory
from localspec.formats.model_file import count_parameters
from localspec.library import Model, Progress, storage
from localspec.library.progress import folder_bytes
from localspec.plugins import Spec
from localspec.runtime.loading import LoadSpec

FLOAT, HALF = 4, 2  # bytes of a weight
SPARE = 1.1  # scales, tokenizer and whatever else lies beside weights


def check(source: Model, target: LoadSpec, steps: Sequence[Spec], folder: Path, progress: Progress) -> None:
    """Tell what a build takes; raises TooLittleMemory and StorageError where there is less.

    Steps hold the source several times, the check at the end the target and what was made. What an earlier
    try has left in `folder` needs no room again. Healing holds both models in float32.
    """
    count = _values(source)
    needed = max(0, int(SPARE * sum(_written(count, steps))) - folder_bytes(folder))
    memory = devices.ENGINE_OVERHEAD + max(3 * HALF * count, target.memory + HALF * count)
    if any(step.name == "heal" for step in steps):
        memory += FLOAT * (_values(target.model) + count)
    free, room = devices.free_memory(), storage.free_bytes(folder)
    progress.say(
        f"It takes about {memory / 1e9:.1f} GB of memory ({free / 1e9:.1f} GB are free) and"
        f" {needed / 1e9:.1f} GB of disk ({room / 1e9:.1f} GB are free)"
    )
    if memory > free:
        raise TooLittleMemory(source.name, memory, free)
    storage.check_free_space(folder, needed)


def _written(count: int, steps: Sequence[Spec]) -> list[int]:
    """Return the bytes of the weights of each stage, the model in the library last."""
    size = HALF * count
    found = [size]
    for step in steps:
        if step.name == "quantize":
            bits = step.options.get("bits", "4")
            size = count * (int(bits) if bits.isdigit() else 8) // 8  # those that are chosen are 8 at most
        elif step.name == "heal":
            size = HALF * count
        found.append(size)
    return [*found, size]


def _values(model: Model) -> int:
    """Count the numbers of a model's weights; of one that is a graph alone, as if it had eight bits each."""
    path = model.files_in("safetensors") or model.files_in("gguf")
    return count_parameters(path) if path else _weights(model)


def _weights(model: Model) -> int:
    """Return the bytes of a model's weights in the library."""
    return sum(model.manifest.sizes.values())
