"""localspec: the same answers of a local language model, faster."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localspec.api import Model, load
    from localspec.chat import Chat
    from localspec.core.stats import Stats
    from localspec.errors import LocalspecError
    from localspec.runtime.answer import Answer, AnswerStream

__all__ = ["Answer", "AnswerStream", "Chat", "LocalspecError", "Model", "Stats", "load"]

# OpenVINO and NNCF send telemetry through this package, if it is installed. None makes its import fail.
_modules: dict[str, Any] = sys.modules
_modules.setdefault("openvino_telemetry", None)

_PLACES = {
    "Answer": "runtime.answer",
    "AnswerStream": "runtime.answer",
    "Chat": "chat",
    "LocalspecError": "errors",
    "Model": "api",
    "Stats": "core.stats",
    "load": "api",
}


def __getattr__(name: str) -> Any:
    """Import a public name on its first use, so that `import localspec` stays fast."""
    if name not in _PLACES:
        raise AttributeError(f"module `localspec` has no attribute `{name}`")
    from importlib import import_module

    return getattr(import_module(f"localspec.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
