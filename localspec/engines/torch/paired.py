"""Texts that are read in pairs of tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from localspec.core.sessions import PairedText, Tree
from localspec.core.types import Logits
from localspec.decoder.capacity import grown
from localspec.decoder.rows import ToNumpy
from localspec.engines.torch.model import TorchModel
from localspec.engines.torch.sessions import Growing
from localspec.formats.huggingface.torch_devices import memory_errors
from localspec.formats.pipo import layout
from localspec.formats.pipo.torch_pairs import COMMAND, TorchPairs

Tensor = Any  # torch.Tensor


def pairs_for(engine: TorchModel, folder: str) -> TorchPairs | None:
    """Return PIPO's weights in a folder, with the adapters merged into a copy of the model of `engine`.

    None for an empty name. Raises BrokenModel for damaged files, UnsupportedModel for those of another model
    and for one that takes no attention mask.
    """
    import torch

    if not folder:
        return None
    stored = layout.read(Path(folder))
    shape = stored.shape
    engine.check_reads(f"weights of PIPO in `{folder}`", shape.width, shape.layers, shape.head.vocab, COMMAND)
    weights = {
        name: torch.from_numpy(value).to(engine.place, engine.dtype) for name, value in stored.tensors.items()
    }
    return TorchPairs(shape, weights, engine.model).merged()


class TorchPairSession(PairedText):
    """A text in pairs, with the keys of all pairs in the model and in the head."""

    def __init__(self, engine: TorchModel, pairs: TorchPairs) -> None:
        super().__init__(engine.context, engine.vocab)
        self._engine, self._pairs = engine, pairs
        self._memory, self._head = Growing(engine), HeadMemory(pairs, engine)
        self._numpy = ToNumpy()
        self._own: Tensor = None  # the head's states when it was asked

    def _read(self, firsts: list[int], seconds: list[int], at: int, rows: int) -> Logits:
        import torch

        with torch.inference_mode(), memory_errors(self._engine.place, f"a text of {at + len(firsts)} pairs"):
            first, second = (torch.tensor([part], device=self._engine.place) for part in (firsts, seconds))
            given = self._memory.given(Tree(at, len(firsts), []))
            given |= {"inputs_embeds": self._pairs.latents(first, second)}
            model = self._pairs.model.base_model
            after = model(**self._engine.accepted(given)).last_hidden_state[0]
            told = (rows + 1) // 2 if rows > 1 else 0  # pairs whose first token has a row, or may have
            own = self._head.read(first[0], self._head.before(after, at), at, told)
            self._head.keep(after, at)
            self._keep(at + len(firsts))
            if not rows:
                return np.empty((0, self._vocab), np.float32)
            asked = after[-1:]
            if told:
                asked = torch.stack([self._pairs.head.normed(own), after[len(after) - told :]], 1)
                asked = asked.flatten(0, 1)[-rows:]
            return self._numpy(self._pairs.logits(asked))

    def _ask(self, first: int, at: int) -> float:
        import torch

        with torch.inference_mode():
            before = self._head.before(None, at)
            tokens = torch.tensor([first], device=self._engine.place)
            self._own = self._head.read(tokens, before, at, 1)
            return float(self._pairs.sure(before, self._own).sigmoid())

    def _told(self) -> Logits:
        import torch

        with torch.inference_mode():
            return self._numpy(self._pairs.head.logits(self._own))

    def _keep(self, pairs: int) -> None:
        self._memory.extent.length = pairs


class HeadMemory:
    """The head's keys and values of each pair of a text, and the model's states after it."""

    def __init__(self, pairs: TorchPairs, engine: TorchModel) -> None:
        self._pairs, self._engine = pairs, engine
        self._kept: dict[str, Tensor] = {}  # [..., room, columns]

    def before(self, after: Tensor | None, at: int) -> Tensor:
        """Return the states before pairs from `at` on, and before the next one: of those `after` them."""
        import torch

        start = self._pairs.weights["start"][None]
        last = self._kept["states"][at - 1 : at] if at else start
        return last if after is None else torch.cat([last.to(after.dtype), after[:-1]])

    def keep(self, after: Tensor, at: int) -> None:
        """Keep the states after pairs from `at` on."""
        self._put("states", after, at)

    def read(self, first: Tensor, before: Tensor, at: int, told: int) -> Tensor:
        """Read the first tokens of pairs from `at` on; return the head's own states of the last `told`."""
        positions = torch_range(at, at + len(first), first)
        read, queries, keys, values = self._pairs.project(first, before, positions)
        self._put("keys", keys, at)
        self._put("values", values, at)
        total, new = at + len(first), len(first) - told
        if not told:
            return read[new:]
        kept = (self._kept[name][..., :total, :] for name in ("keys", "values"))
        return self._pairs.head.finish(read[new:], self._pairs.head.attend(queries[:, new:], *kept))

    def _put(self, name: str, new: Tensor, at: int) -> None:
        """Write values [..., n, columns] from `at` on, in a buffer that grows by doubling."""
        end, old = at + new.shape[-2], self._kept.get(name)
        room = 0 if old is None else old.shape[-2]
        if old is None or room < end:
            room = grown(room, end, self._engine.context)
            self._kept[name] = new.new_zeros((*new.shape[:-2], room, new.shape[-1]))
            if old is not None:
                self._kept[name][..., :at, :] = old[..., :at, :]
        self._kept[name][..., at:end, :] = new


def torch_range(first: int, last: int, like: Tensor) -> Tensor:
    """Return the numbers from `first` up to `last` on the device of a tensor."""
    import torch

    return torch.arange(first, last, device=like.device)
