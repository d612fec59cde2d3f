"""The libraries behind the engines, and the versions that are installed."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from localspec.installation import install_command

PACKAGES = (
    *("localspec", "openvino", "llama-cpp-python", "torch", "transformers", "nncf"),
    *("tokenizers", "huggingface-hub", "numpy"),
)


@dataclass(frozen=True, slots=True)
class EngineLibrary:
    """A library that an engine needs: its module, its distribution, and the extra that installs it."""

    module: str
    distribution: str
    extra: str | None = None

    @property
    def version(self) -> str | None:
        """The installed version, None if it is not installed."""
        try:
            return version(self.distribution) if find_spec(self.module) else None
        except (PackageNotFoundError, ImportError, ValueError):
            return None

    @property
    def install(self) -> str:
        """The command that installs it where this copy of localspec runs."""
        return install_command(self.extra)


LIBRARIES = {
    "openvino": EngineLibrary("openvino", "openvino"),
    "npu": EngineLibrary("openvino", "openvino"),
    "llamacpp": EngineLibrary("llama_cpp", "llama-cpp-python", "gguf"),
    "torch": EngineLibrary("torch", "torch", "export"),
}


def versions() -> dict[str, str | None]:
    """Return the versions of Python, the system and the main packages; None for a missing package."""
    system = {"python": platform.python_version(), "system": platform.platform()}
    return system | {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
