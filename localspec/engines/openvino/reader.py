"""A compiled graph, and the paged KV cache of the texts that it reads."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import numpy as np

from localspec.core.sessions import Tree
from localspec.engines.openvino.device_config import Placement
from localspec.formats.graph.paged import ROWS

# tokens of the passes of a steady reader: about an eighth apart where several texts share one
WIDTHS = (2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256)
SHORT = 16  # tokens; a width is kept for passes that need fewer up to this one
NEAR = 1.3  # or up to so many times what they need
PATIENCE = 6  # passes that need fewer tokens until they have fewer
NO_BRANCHES = np.zeros(0, bool)
FIRST_BLOCKS = 8  # blocks of a new KV cache; doubled when full


class Part(NamedTuple):
    """The `size` tokens of one text in a pass, from position `at` on; `blocks` hold the text's KV cache.

    The logits of an `exact` one are those of any other pass, if the engine pads. The last tokens are
    branches, each with its parent, the number of an earlier token of the part, in `parents`.
    """

    blocks: list[int]
    at: int
    size: int
    exact: bool = True
    parents: Sequence[int] = ()

    @property
    def tree(self) -> Tree:
        """The shape of the part."""
        return Tree(self.at, self.size - len(self.parents), self.parents)


class Compiled(Protocol):
    """The engine whose graph is read: what a reader must know of it."""

    context: int
    pads: bool  # single tokens are read twice
    place: Placement

    def packing(self, compiled: Any, count: int) -> AbstractContextManager[None]:
        """Return the context for a pass over `count` tokens."""


class KvBlocks:
    """The blocks of a KV cache: how many there are, which are free, and the tensors that hold them.

    `requests` are those of all readers of the cache.
    """

    def __init__(self) -> None:
        self.count = 0
        self.free: list[int] = []  # a heap, so that a text's blocks lie in order if they can
        self.tensors: dict[str, Any] = {}  # by input
        self.requests: list[Any] = []


class Reader:
    """A compiled graph or a part of one, and the blocks of the KV cache of up to `texts` texts."""

    def __init__(
        self,
        engine: Compiled,
        compiled: Any,
        texts: int = 1,
        *,
        steady: int = 0,
        beside: Reader | None = None,
    ) -> None:
        """Make an empty cache, or read that of a reader `beside` this one, whose graph has the same layers.

        A padding engine pads passes over `steady` texts or more to few widths.
        """
        import openvino as ov

        self._ov = ov
        self._engine = engine
        self._compiled = compiled
        self._request = compiled.create_infer_request()
        caches = [port for port in compiled.inputs if "_cache." in port.any_name]
        self._caches = {port.any_name: port for port in caches}
        self.block = next(
            (int(port.partial_shape[2].get_length()) for port in caches if "value" in port.any_name), 1
        )
        self._inputs = {port.any_name for port in compiled.inputs} - self._caches.keys()
        self._most = texts * -(-(engine.context + 1) // self.block)  # a token more, for padding
        self._steady = steady
        self._widths = self._new_widths() if steady and engine.pads else None  # of tokens, of rows
        self.places: Any = np.zeros(0, np.int64)  # of the last pass's tokens in outputs about all of them
        self._kv: KvBlocks = beside._kv if beside else KvBlocks()
        self._kv.requests.append(self._request)
        self.keep(self._kv.tensors)

    def read(self, parts: Sequence[Part], rows: Sequence[int] | None = None, **inputs: Any) -> Any:
        """Read the tokens of the parts; return the first output, a view until the next call.

        `inputs` hold a value for each token; a graph that gathers rows gives those of the tokens `rows`.
        The blocks of each text are extended as needed. A padding engine reads a text's single token twice,
        and computes a single row twice, because attention and products round otherwise for one than for
        several. The next pass overwrites the second token's keys, and its output is dropped.
        """
        times = [np.ones(part.size, np.int64) for part in parts]  # that each token is read
        for part, own in zip(parts, times, strict=True):
            own[-1:] += self._engine.pads and part.exact and part.size == 1
        self._pad(parts, times)
        read = np.concatenate(times)
        places = self.places = np.cumsum(read) - read  # of the tokens in the pass
        wanted = None if rows is None else places[np.array(rows, int)]
        if wanted is not None:
            inputs[ROWS] = np.resize(wanted, self._least(len(wanted), len(parts))).astype(np.int32)
        if len(read) < read.sum():
            inputs = {
                name: array if name == ROWS else np.repeat(array, read, 0) for name, array in inputs.items()
            }
        sizes = [int(own.sum()) for own in times]
        self._infer([_longer(part, size) for part, size in zip(parts, sizes, strict=True)], inputs)
        output = self.output(0)
        if wanted is not None:
            return output[: len(wanted)]
        return output[places] if len(read) < read.sum() else output

    def _pad(self, parts: Sequence[Part], times: Sequence[Any]) -> None:
        """Read the last token of an exact part more often, up to a steady width."""
        if self._widths is None or len(parts) < self._steady:
            return
        total = sum(int(one.sum()) for one in times)
        missing = self._widths[0].of(total) - total
        for part, own in zip(parts, times, strict=True):
            if missing > 0 and part.size and part.exact:
                fits = min(missing, self._engine.context - part.at - int(own.sum()))
                own[-1] += max(fits, 0)
                missing -= max(fits, 0)

    def _least(self, rows: int, texts: int) -> int:
        """Return how many rows a pass over so many texts computes that needs so many."""
        if not self._engine.pads or not rows:
            return rows
        steady = self._widths is not None and texts >= self._steady
        return max(rows, self._widths[1].of(rows) if self._widths and steady else 2)

    def _infer(self, parts: Sequence[Part], inputs: dict[str, Any]) -> None:
        starts, ends = [part.at for part in parts], [part.at + part.size for part in parts]
        blocks = [self._needed(part.blocks, end) for part, end in zip(parts, ends, strict=True)]
        sees = [part.tree.sees().ravel() if part.parents else NO_BRANCHES for part in parts]
        self._set(
            position_ids=np.concatenate([part.tree.positions() for part in parts]),
            qq_bias=np.concatenate(sees).astype(np.uint8),
            qq_bias_begins=_begins([len(one) for one in sees]),
            past_lens=np.array(starts, np.int32),
            subsequence_begins=_begins([part.size for part in parts]),
            block_indices_begins=_begins([len(one) for one in blocks]),
            block_indices=np.array([block for one in blocks for block in one], np.int32),
            max_context_len=np.array(max(ends), np.int32),
            **inputs,
        )
        with self._engine.packing(self._compiled, sum(part.size for part in parts)):
            self._request.infer()

    def keep(self, inputs: Mapping[str, Any]) -> None:
        """Set inputs that are the same in all passes to come, as tensors that the caller keeps."""
        for name, tensor in inputs.items():
            self._request.set_tensor(name, tensor)
        if self._widths is not None:
            self._widths = self._new_widths()

    def _new_widths(self) -> tuple[Widths, Widths]:
        return Widths(lasting=self._steady == 1), Widths(lasting=self._steady == 1)

    def output(self, number: int) -> Any:
        """Return an output of the last pass, a view until the next one."""
        return self._request.get_output_tensor(number).data

    def free(self, blocks: list[int], tokens: int) -> None:
        """Take back the blocks of a text that its first `tokens` do not need."""
        while len(blocks) * self.block >= tokens + self.block:
            heapq.heappush(self._kv.free, blocks.pop())

    def export_kv(self, blocks: Sequence[int], first: int, last: int) -> bytes:
        """Return the keys and values of the tokens [first, last) of a text: whole blocks."""
        own = blocks[first // self.block : last // self.block]
        return b"".join(self._kv.tensors[name].data[own].tobytes() for name in self._caches)

    def import_kv(self, blocks: list[int], piece: bytes, at: int, count: int) -> None:
        """Import `count` tokens at position `at` that `export_kv` returned; raises ValueError for others."""
        own = self._needed(blocks, at + count)[at // self.block :]
        shapes = [self._kv.tensors[name].data.shape[1:] for name in self._caches]
        types = [self._kv.tensors[name].data.dtype for name in self._caches]
        sizes = [
            len(own) * int(np.prod(shape)) * kind.itemsize for shape, kind in zip(shapes, types, strict=True)
        ]
        if sum(sizes) != len(piece):
            raise ValueError(f"{len(piece)} bytes are not the KV cache of {count} tokens")
        for name, shape, kind, start in zip(self._caches, shapes, types, _begins(sizes), strict=False):
            values = np.frombuffer(piece, kind, len(own) * int(np.prod(shape)), start)
            self._kv.tensors[name].data[own] = values.reshape(len(own), *shape)

    def _set(self, **arrays: Any) -> None:
        for name, array in arrays.items():
            if name in self._inputs:
                self._request.set_tensor(name, self._ov.Tensor(array))

    def _needed(self, blocks: list[int], tokens: int) -> list[int]:
        """Return the blocks of a text's first `tokens`, taking more if it has too few."""
        needed = -(-tokens // self.block) if self._caches else 0
        missing = needed - len(blocks)
        if missing > len(self._kv.free):
            self._grow(self._kv.count + missing - len(self._kv.free))
        blocks += [heapq.heappop(self._kv.free) for _ in range(missing)]
        return blocks[:needed]

    def _grow(self, needed: int) -> None:
        """Grow to `needed` blocks or twice the present number, up to what all texts can need."""
        kv = self._kv
        old, blocks = kv.count, min(max(needed, 2 * kv.count, FIRST_BLOCKS), self._most)
        free = set(kv.free)
        kept = max((block + 1 for block in range(old) if block not in free), default=0)
        for name, port in self._caches.items():
            shape = [blocks, *(int(port.partial_shape[axis].get_length()) for axis in (1, 2, 3))]
            tensor = self._engine.place.cache(
                self._compiled, port.element_type, shape, kv.tensors.get(name), kept
            )
            for request in kv.requests:
                request.set_tensor(name, tensor)
            kv.tensors[name] = tensor
        for block in range(old, blocks):
            heapq.heappush(kv.free, block)
        kv.count = blocks


class Widths:
    """Chooses the tokens of passes so that they are few, and if they are `lasting`, seldom change.

    OpenVINO keeps some megabytes for each width. It also prepares each layer anew for one, which costs a
    small model more than a few tokens that nobody needs, and a large one less (docs/performance.md).
    """

    def __init__(self, *, lasting: bool) -> None:
        self._lasting = lasting
        self._last, self._recent = WIDTHS[0], deque[int](maxlen=PATIENCE)

    def of(self, tokens: int) -> int:
        """Return the width of a pass that needs so many tokens, as many as those if it is a long one."""
        if tokens > WIDTHS[-1] or (tokens <= SHORT and not self._lasting):
            return tokens
        if not self._lasting:
            return next(width for width in WIDTHS if width >= tokens)
        self._recent.append(tokens)
        needed, most = (next(w for w in WIDTHS if w >= n) for n in (tokens, max(self._recent)))
        far = self._last > max(SHORT, NEAR * needed)
        if needed > self._last or far or (len(self._recent) == PATIENCE and most < self._last):
            self._last = needed if far else most
        return self._last


def _longer(part: Part, size: int) -> Part:
    """Return a part whose last token is read more often, until it has so many tokens."""
    more = [part.parents[-1]] * (size - part.size) if part.parents else []
    return part._replace(size=size, parents=[*part.parents, *more])


def _begins(counts: Sequence[int]) -> Any:
    """Return where each of several runs begins, and where the last ends."""
    return np.array([0, *accumulate(counts)], np.int32)
