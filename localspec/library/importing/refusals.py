"""Whether a model can become an OpenVINO graph: seen in the headers of its files, and remembered."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from localspec.errors import BrokenModel, StorageError, UnsupportedModel
from localspec.formats.diffusion.config import is_diffusion
from localspec.formats.vision.config import sees
from localspec.library.manifest import Manifest
from localspec.library.progress import Progress

REASON, VERSIONS = "reason", "versions"
READERS = ("localspec", "gguf")  # newer versions may read what these refuse


def check(path: Path) -> None:
    """Raise UnsupportedModel, before anything is converted, for a file or folder that cannot be a graph.

    One that is damaged passes: the conversion says what is wrong with it.
    """
    from localspec.formats.graph import architecture
    from localspec.formats.huggingface.safetensors import SafetensorsFolder
    from localspec.formats.vision import config, stored

    with suppress(BrokenModel, StorageError):
        folder = SafetensorsFolder.open(path) if path.is_dir() else None
        if folder and sees(folder.architecture):
            architecture.of_folder(config.language_model(folder))
            stored.check(folder)
        else:
            architecture.of_path(path)


def record(error: UnsupportedModel) -> dict[str, str]:
    """Return a refusal as a manifest keeps it."""
    return {REASON: error.message, VERSIONS: _versions()}


def remembered(about: Manifest) -> UnsupportedModel | None:
    """Return the refusal that a manifest keeps, None for none or one of other versions."""
    if about.no_graph.get(VERSIONS) != _versions():
        return None
    return UnsupportedModel(reason(about), "Choose another engine: `localspec parts engines`")


def reason(about: Manifest) -> str:
    """Return why a model has no graph."""
    return about.no_graph.get(REASON, f"`{about.name}` has no OpenVINO graph")


def report(about: Manifest, progress: Progress) -> None:
    """Say why a model has no graph, if it was refused."""
    own = is_diffusion(about.architecture) or sees(about.architecture)  # those have an engine of their own
    if about.no_graph and not own:
        progress.say(f"{reason(about)}; another engine may support it")


def _versions() -> str:
    return ", ".join(f"{name} {_version(name)}" for name in READERS)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
