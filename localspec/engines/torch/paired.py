"""Texts that are read in pairs of tokens."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import Any

from localspec.core.contracts import PairSession
from localspec.core.sessions import Tree
from localspec.core.types import Logits, Tokens
from localspec.engines.torch import kv_cache
from localspec.engines.torch.model import TorchModel
from localspec.engines.torch.sessions import Growing, TorchSession
from localspec.formats.huggingface.torch_devices import memory_errors
from localspec.formats.pipo import layout
from localspec.formats.pipo.torch_pairs import COMMAND, PAD, TorchPairs

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


class TorchPairSession(TorchSession, PairSession):
    """A text in pairs; one token of it may wait for the second of its pair.

    The model's states after each pair are kept, and the head's keys, so that a rewind only changes numbers.
    """

    chunk: int = 512

    def __init__(self, engine: TorchModel, pairs: TorchPairs) -> None:
        super().__init__(engine)
        self._pairs = pairs
        self._memory = Growing(engine)
        self._head = HeadMemory(pairs, engine)
        self._firsts: list[int] = []  # the first token of each pair
        self._ends: list[int] = []  # the tokens of the text up to the end of each pair
        self._waiting: list[int] = []  # the last token of the text, if its pair is not complete
        self._sure: float | None = None

    def confidence(self) -> float | None:
        """Return how sure the head is of the last row."""
        return self._sure

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return logits [rows, vocab]."""
        text = [*self._waiting, *tokens]
        total = (self._ends[-1] if self._ends else 0) + len(text)
        self._limit(total)
        if not tokens:
            return self._empty()
        whole = len(text) // 2 * 2
        with (
            self._torch.inference_mode(),
            memory_errors(self._engine.place, f"a text of {total} tokens"),
        ):
            found, asked = [], rows - len(text) + whole  # of the tokens in whole pairs
            if whole:
                found += self._read(text[:whole:2], text[1:whole:2], max(asked, 0))
            self._waiting = text[whole:]
            if rows:
                self._sure = None
            if rows and self._waiting:
                found.append(self._last())
            if not rows:
                return self._empty()
            return self._numpy(self._pairs.logits(self._torch.cat(found)))

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens; the next pass overwrites the rest."""
        if length >= (total := (self._ends[-1] if self._ends else 0) + len(self._waiting)):
            return total
        kept = bisect_right(self._ends, length)
        cut = length - (self._ends[kept - 1] if kept else 0)  # within a pair
        self._waiting = (
            self._firsts[kept : kept + 1] if cut and kept < len(self._ends) else self._waiting[:cut]
        )
        del self._firsts[kept:], self._ends[kept:]
        self._memory.extent.length = kept
        return length

    def _read(self, firsts: Tokens, seconds: Tokens, rows: int) -> list[Tensor]:
        """Append pairs; return what the vocabulary reads for the last `rows` of their tokens, in parts."""
        torch, memory, at = self._torch, self._memory, self._memory.extent.length
        first, second = (torch.tensor([part], device=self._engine.place) for part in (firsts, seconds))
        given = memory.given(Tree(at, len(firsts), []))
        given |= {"inputs_embeds": self._pairs.latents(first, second)}
        model = self._pairs.model.base_model
        after = model(**self._engine.accepted(given)).last_hidden_state[0]
        told = (rows + 1) // 2 if rows > 1 else 0  # pairs whose first token has a row, or may have
        own = self._head.read(first[0], self._head.before(after, at), at, told)
        self._head.keep(after, at)
        memory.extent.length += len(firsts)
        self._firsts += firsts
        end = self._ends[-1] if self._ends else 0
        for token in seconds:
            self._ends.append(end := end + (1 if token == PAD else 2))
        if not rows:
            return []
        if not told:
            return [after[-1:]]
        both = torch.stack([self._pairs.head.normed(own), after[len(after) - told :]], 1).flatten(0, 1)
        return [both[len(both) - rows :]]

    def _last(self) -> Tensor:
        """Return what the vocabulary reads [1, width] after the waiting token: of the head, if it is sure."""
        at, place = self._memory.extent.length, self._engine.place
        first = self._torch.tensor(self._waiting, device=place)
        before = self._head.before(None, at)
        own = self._head.read(first, before, at, 1)
        self._sure = float(self._pairs.sure(before, own).sigmoid())
        if self._sure >= self.least:
            return self._pairs.head.normed(own)
        waiting, self._waiting, self._sure = self._waiting, [], None
        try:
            return self._read(waiting, [PAD], 1)[0]
        except BaseException:
            self._waiting = waiting
            raise


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
            room = kv_cache.grown(room, end, self._engine.context)
            self._kept[name] = new.new_zeros((*new.shape[:-2], room, new.shape[-1]))
            if old is not None:
                self._kept[name][..., :at, :] = old[..., :at, :]
        self._kept[name][..., at:end, :] = new


def torch_range(first: int, last: int, like: Tensor) -> Tensor:
    """Return the numbers from `first` up to `last` on the device of a tensor."""
    import torch

    return torch.arange(first, last, device=like.device)
