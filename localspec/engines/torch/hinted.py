"""Texts beside which hints are read: rows that stand for tokens which are not known yet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from localspec.core.contracts import HintedSession
from localspec.core.sessions import Tree, chains
from localspec.core.types import Logits, Tokens
from localspec.engines.torch.model import TorchModel
from localspec.engines.torch.sessions import GrowingSession
from localspec.formats.huggingface.torch_devices import memory_errors
from localspec.formats.k_forcing import layout
from localspec.formats.k_forcing.torch_hints import COMMAND, TorchHints

ROWS = 16  # of a pass; longer drafts are of others, and get no hints


def hints_for(engine: TorchModel, folder: str) -> TorchHints | None:
    """Return the hints in a folder for the model of `engine`, None for an empty name.

    Raises BrokenModel for damaged files, UnsupportedModel for hints of another model and for one that takes
    no attention mask.
    """
    import torch

    if not folder:
        return None
    stored = layout.read(Path(folder))
    shape = stored.shape
    engine.check_reads(f"hints in `{folder}`", shape.width, shape.layers, shape.vocab, COMMAND)
    weights = {
        name: torch.from_numpy(value).to(engine.place, engine.dtype) for name, value in stored.tensors.items()
    }
    return TorchHints(stored.shape, weights, engine.model)


class TorchHintedSession(GrowingSession, HintedSession):
    """A text whose passes read hints after each row, if they are asked to.

    Hints are a chain of branches after each row, seen by no token of the text; their keys are overwritten.
    """

    def __init__(self, engine: TorchModel, hints: TorchHints) -> None:
        super().__init__(engine)
        self.k = hints.shape.k
        self._hints = hints
        self._asked: tuple[Callable[[int], float], float, int] | None = None
        self._hinted = self._none()

    def hint(self, noise: Callable[[int], float], temperature: float, count: int = 0) -> None:
        """Let the next pass that has rows read hints after each of them."""
        self._asked = noise, temperature, count or self.k - 1

    def hinted(self) -> Logits:
        """Return the logits [rows, hints, vocab] after the hints of the last pass that had rows."""
        return self._hinted

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return logits [rows, vocab]."""
        if not rows:
            return super().forward(tokens, rows)
        asked, self._asked, self._hinted = self._asked, None, self._none()
        past, count = self._memory.extent.length, asked[2] if asked else 0
        room = past + len(tokens) + rows * count <= self._engine.context
        if asked is None or rows > ROWS or not room:
            return super().forward(tokens, rows)
        return self._with_hints(tokens, rows, *asked)

    def _with_hints(
        self, tokens: Tokens, rows: int, noise: Callable[[int], float], temperature: float, count: int
    ) -> Logits:
        torch, engine, extent = self._torch, self._engine, self._memory.extent
        first = len(tokens)
        begins = [extent.length + first - rows + row + 1 for row in range(rows)]  # the next token of each row
        drawn = [[noise(position) for position in range(at, at + count)] for at in begins]
        tree = Tree(extent.length, first, chains(first, rows, count))
        with (
            torch.inference_mode(),
            memory_errors(engine.place, f"a text of {extent.length + tree.size} tokens"),
        ):
            ids = torch.tensor([tokens], device=engine.place)
            numbers = torch.tensor([drawn], dtype=torch.float64)  # some devices have no float64
            warm = numbers.new_full((1, rows), temperature)
            hints = self._hints.embed(numbers, warm).flatten(1, 2).to(engine.dtype)
            inputs = torch.cat([engine.model.get_input_embeddings()(ids), hints], 1)
            with self._hints.reading(first):
                logits = self._run(self._memory.given(tree) | {"inputs_embeds": inputs}, rows * (1 + count))
            found = self._numpy(logits)
        extent.length += first
        self._hinted = found[rows:].reshape(rows, count, -1)
        return found[:rows]

    def _none(self) -> Logits:
        return np.empty((0, 0, self._engine.vocab), np.float32)
