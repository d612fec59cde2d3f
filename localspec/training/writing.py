"""A decoder of our own writes texts: a pass appends a token to each row, and a row that ends begins anew."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.decoder.forward import Decoder, Places
from localspec.decoder.passes import Buffers, Recorder, bucket
from localspec.drafting.build_step import TargetText
from localspec.formats.huggingface.torch_devices import free_memory

TOP_P = 0.95  # of drawn tokens
DRAWING = 1 << 28, 24  # bytes that drawing takes at a time, and those of a token of the vocabulary
FIRST_END = 64  # slots that the shortest texts attend to


class Start(NamedTuple):
    """The first tokens of a text; those `after` a question that is drawn behind them, None for a prompt."""

    given: Sequence[int]
    after: Sequence[int] | None = None


class Limits(NamedTuple):
    """The most tokens of a question and of an answer."""

    question: int
    answer: int


def longest(starts: Sequence[Start], question: int) -> int:
    """Return the most tokens before an answer, behind a `question` of so many where one is drawn."""
    drawn = (len(start.given) + len(start.after) + question for start in starts if start.after is not None)
    return max([*drawn, *(len(start.given) for start in starts)])


class TextWriter:
    """Writes texts in the rows of one batch, token by token: no row waits for another one to end.

    Questions are drawn, answers are greedy. Reading the tokens that are given takes a pass each, too.
    """

    def __init__(
        self, decoder: Decoder, rows: int, stops: Collection[int], limits: Limits, seed: int
    ) -> None:
        import torch

        self._torch, self._decoder, self._most = torch, decoder, rows
        self._stops, self._limits = np.array(list(stops), np.int64), limits
        self._place = decoder.weights.norm.device
        self._generator = torch.Generator(self._place).manual_seed(seed)

    def write(self, starts: Sequence[Start], more: Callable[[], bool]) -> Iterator[list[TargetText]]:
        """Yield the texts of `starts` in their order, some at a time; all end where they are without `more`.

        A text whose question is drawn empty is left out.
        """
        room = longest(starts, self._limits.question) + self._limits.answer
        self._hold(room, len(starts))
        passes = _Passes(self._decoder, self._rows, room)
        self._left = iter(enumerate(starts))
        self._tokens = np.zeros((self._rows, room), np.int64)
        self._filled, self._at, self._from, self._number = np.zeros((4, self._rows), np.int64)
        self._after: list[Sequence[int] | None] = [None] * self._rows
        self._asks, self._runs = np.zeros((2, self._rows), np.bool_)
        self._ended: dict[int, TargetText | None] = {}
        for row in range(self._rows):
            self._begin(row)
        first = 0  # of the texts that are not yielded yet
        while self._runs.any() and more():
            self._step(passes)
            if len(self._ended) >= self._rows and first in self._ended:
                last = next(at for at in range(first, len(starts) + 1) if at not in self._ended)
                yield self._taken(range(first, last))
                first = last
        for row in np.flatnonzero(self._runs & ~self._asks).tolist():
            self._end(row)
        yield self._taken(sorted(self._ended))

    def _hold(self, room: int, texts: int) -> None:
        """Take no more rows than there are texts, nor than half of the free memory holds."""
        shape, weights = self._decoder.shape, self._decoder.weights
        numbers = 2 * (shape.layers * shape.key_heads * shape.head_width * room + weights.head.rows)
        held = free_memory(self._place) // 2 // (numbers * weights.norm.element_size())
        self._rows = max(1, min(self._most, texts, held))
        self._lines = np.arange(self._rows)

    def _step(self, passes: _Passes) -> None:
        """Append a token to each row whose given tokens are read; the next text follows one that it ends."""
        grows = self._runs & (self._at + 1 == self._filled)
        logits = passes(self._tokens[self._lines, self._at], self._at)
        new = self._chosen(logits, np.flatnonzero(grows & self._asks))
        self._at += self._runs
        self._tokens[self._lines[grows], self._filled[grows]] = new[grows]
        self._filled += grows
        stopped, length = np.isin(new, self._stops), self._filled - self._from
        asked = grows & self._asks & (stopped | (length >= self._limits.question))
        answered = grows & ~self._asks & (stopped | (length >= self._limits.answer))
        for row in np.flatnonzero(asked).tolist():
            self._ask(row, stopped=bool(stopped[row]))
        for row in np.flatnonzero(answered).tolist():
            self._end(row)
            self._begin(row)

    def _chosen(self, logits: Any, asking: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the likeliest token of each row, a drawn one for those that are `asking`."""
        torch = self._torch
        chosen = logits.argmax(-1)
        most, each = DRAWING
        some = max(1, most // (each * logits.shape[-1]))
        for at in range(0, len(asking), some):
            rows = torch.from_numpy(asking[at : at + some]).to(self._place)
            probs, tokens = logits[rows].float().softmax(-1).sort(-1, descending=True)
            probs[probs.cumsum(-1) - probs > TOP_P] = 0.0
            drawn = torch.multinomial(probs, 1, generator=self._generator)
            chosen[rows] = tokens.gather(-1, drawn)[:, 0]
        found: NDArray[np.int64] = chosen.cpu().numpy()
        return found

    def _begin(self, row: int) -> None:
        """Begin the next text in a row, which rests if there is none."""
        number, start = next(self._left, (0, None))
        self._runs[row], self._at[row], self._number[row] = start is not None, 0, number
        if start is not None:
            self._filled[row] = self._from[row] = len(start.given)
            self._tokens[row, : len(start.given)] = start.given
            self._asks[row], self._after[row] = start.after is not None, start.after

    def _ask(self, row: int, *, stopped: bool) -> None:
        """End the question of a row."""
        self._filled[row] -= stopped
        if self._filled[row] == self._from[row]:
            self._ended[int(self._number[row])] = None
            self._begin(row)
            return
        after = self._after[row] or ()
        first = self._filled[row]
        self._tokens[row, first : first + len(after)] = after
        self._filled[row] = self._from[row] = first + len(after)
        self._at[row] = min(self._at[row], first + len(after) - 1)  # no stop token is read
        self._asks[row] = False

    def _end(self, row: int) -> None:
        """End the answer of a row."""
        first, tokens = self._from[row], self._tokens[row, : self._filled[row]].tolist()
        self._ended[int(self._number[row])] = TargetText(tokens[:first], tokens[first:])

    def _taken(self, numbers: Iterable[int]) -> list[TargetText]:
        """Give away texts that ended, but for those without an answer."""
        texts = [self._ended.pop(number) for number in numbers]
        return [text for text in texts if text is not None and text.answer]


class _Passes:
    """Passes over one token of each row; a card records one, for all slots."""

    def __init__(self, decoder: Decoder, rows: int, room: int) -> None:
        import torch

        self._torch, self._decoder = torch, decoder
        self._place = place = decoder.weights.norm.device
        self._buffers = Buffers(decoder, room, rows)
        self._buffers.hold(room, 0)
        self._inputs = torch.zeros((2, rows), dtype=torch.long, device=place)
        self._texts = torch.arange(rows, device=place)
        self._logits: Any = None
        self._run = Recorder(place).record(lambda: self._pass(room)) if place.type == "cuda" else None

    def __call__(self, ids: NDArray[np.int64], at: NDArray[np.int64]) -> Any:
        """Read tokens [rows] at positions `at`; return logits [rows, vocab], valid until the next pass."""
        with self._torch.inference_mode():
            self._inputs.copy_(self._torch.from_numpy(np.stack([ids, at])))
            if self._run:
                self._run()
            else:
                self._pass(min(bucket(int(at.max()) + 1, FIRST_END), self._buffers.room))
        return self._logits

    def _pass(self, end: int) -> None:
        torch, (ids, positions), buffers = self._torch, self._inputs, self._buffers
        with torch.inference_mode():
            mask = torch.arange(end, device=self._place) <= positions[:, None, None]
            places = Places(positions, positions[:, None], end, mask, self._texts, positions + 1)
            states = self._decoder.states(ids, places, buffers.keys, buffers.values)[0]
            found = self._decoder.logits(states)
            if self._logits is None:
                self._logits = torch.zeros_like(found)
            self._logits.copy_(found)
