"""Texts in a transformers model without some of its sub-blocks, beside the text in the whole model."""

from __future__ import annotations

from typing import Any

from localspec.core.contracts import ReducibleSession
from localspec.engines.torch.model import TorchModel
from localspec.engines.torch.sessions import GrowingSession
from localspec.errors import UnsupportedModel
from localspec.formats.huggingface import skipping

PROBES = ([0, 1, 2], [3, 4])  # passes that a family must be able to read
FAULTS = (AttributeError, TypeError, ValueError, RuntimeError, IndexError, KeyError)


class TorchReducibleSession(GrowingSession, ReducibleSession):
    """A text in the whole model."""

    def reduced(self, skipped: str) -> ReducedSession:
        """Return a session in the model without the sub-blocks `skipped`; they are tried on a few tokens."""
        engine = self._engine
        if (view := skipping.without(engine.model, skipped)) is not None:
            trial = ReducedSession(engine, view)
            try:
                for tokens in PROBES:
                    trial.forward([token % engine.vocab for token in tokens], 1)
            except FAULTS:
                view = None
        if view is None:
            raise UnsupportedModel(
                f"`{engine.path}` does not run without sub-blocks with the torch engine",
                "Choose another middle tier: `--draft cascade:middle=exit`",
            )
        return ReducedSession(engine, view)


class ReducedSession(GrowingSession):
    """A text in a view of the model, which shares its weights."""

    def __init__(self, engine: TorchModel, view: Any) -> None:
        super().__init__(engine)
        self._view = view

    def _run(self, given: dict[str, Any], rows: int) -> Any:
        return self._engine.run(given, rows, self._view)
