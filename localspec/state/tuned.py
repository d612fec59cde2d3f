"""The setting that `localspec tune` found best for a model: while machine, engines and files are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from localspec import devices
from localspec.library.model import FORMATS, Model
from localspec.library.paths import home
from localspec.state import probes


def key(model: Model) -> str:
    """Name what a tuning holds for: this processor, the engines' versions, the model's files."""
    versions = [library.version for library in devices.LIBRARIES.values()]
    files = [path and probes.stamp(path) for path in map(model.files_in, FORMATS)]
    cpu = devices.cpu()
    return probes.key("tuned", cpu.model, cpu.cores, cpu.memory, versions, files)


def read(model: Model) -> dict[str, Any] | None:
    """Return the fields of a `Choice` and, under `gain`, how many times as fast it was; None without one."""
    found = probes.read(key(model))
    return found if found.get("choice") else None


def keep(model: Model, choice: dict[str, Any] | None, gain: float | None) -> None:
    """Keep a setting, or with None that the default is best."""
    probes.add(key(model), choice=choice, gain=gain)


def log(model: Model) -> Path:
    """Return the file of what a search has measured, so that an interrupted one goes on."""
    return home() / "tuned" / f"{key(model)}.jsonl"
