"""The setting that `localspec tune` found best for a model, valid for this machine, version and files."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from localspec import devices
from localspec.library.model import FORMATS, StoredModel
from localspec.library.paths import home
from localspec.state import probes


def key(model: StoredModel) -> str:
    """Return a name for all that a tuned setting depends on: machine, versions, and the model's files."""
    versions = [version("localspec"), *(library.version for library in devices.LIBRARIES.values())]
    files = [path and probes.stamp(path) for path in map(model.files_in, FORMATS)]
    cpu = devices.cpu()
    cards = [(card.title, card.driver) for card in devices.nvidia_cards()]
    machine = [cpu.model, cpu.cores, cpu.memory, *cards]
    return probes.key("tuned", *machine, versions, files)


def read(model: StoredModel) -> dict[str, Any] | None:
    """Return the fields of a `Choice` under `choice` and its `speedup` over the default; None without one."""
    values = probes.read(key(model))
    sound = isinstance(values.get("choice"), dict) and isinstance(values.get("speedup"), int | float)
    return values if sound else None


def keep(model: StoredModel, choice: dict[str, Any] | None, speedup: float | None) -> None:
    """Keep a setting; None keeps that the default is best."""
    probes.add(key(model), choice=choice, speedup=speedup)


def log(model: StoredModel) -> Path:
    """Return the file of a search's measurements, from which an interrupted search continues."""
    return home() / "tuned" / f"{key(model)}.jsonl"
