"""A llama_context, and the KV cache of several texts in one that grows."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from localspec.core.sessions import Tree
from localspec.core.types import Branch, Logits, Tokens
from localspec.errors import DriverFailed
from localspec.formats.gguf.libllama import (
    LOG,
    LlamaWeights,
    free_context,
    logged_reason,
    run_uninterrupted,
)

FIRST = 1024  # tokens of a new KV cache; doubled when full
BRANCHES = 16  # maximum branches of a pass
ROWS = 64  # maximum logits per pass: llama.cpp reserves memory for this many, and aborts at one more


class Part(NamedTuple):
    """The tokens of one text in a pass, how many of the last get logits, and branches beside them."""

    text: int
    tokens: Tokens
    rows: int
    branches: Sequence[Branch] = ()

    @property
    def size(self) -> int:
        """Tokens of the part."""
        return len(self.tokens) + len(self.branches)


class Settings(Protocol):
    """The engine that reads: its weights, and how."""

    weights: LlamaWeights
    vocab: int
    context: int
    batch: int
    context_params: dict[str, Any]


class Texts:
    """The KV cache of up to `count` texts, each a sequence of llama.cpp's; only that knows their lengths.

    One more sequence, `count`, is a piece of a text that is being exported or imported, and those after it
    are branches: each has all tokens up to its own, and is dropped after the pass.
    """

    def __init__(self, engine: Settings, count: int) -> None:
        import llama_cpp

        self._llama = llama_cpp
        self._engine, self._count = engine, count
        self._context: Context | None = None
        size, int32 = engine.batch, ctypes.POINTER(ctypes.c_int32)
        self._tokens, self._positions = np.zeros(size, np.int32), np.zeros(size, np.int32)
        self._wanted = np.zeros(size, np.int8)
        self._counts, self._numbers = np.ones(size, np.int32), np.arange(count, dtype=np.int32)
        self._sequences = (int32 * size)()
        self._number = [ctypes.cast(self._numbers[text:].ctypes.data, int32) for text in range(count)]
        self._shared = np.zeros((size, 1 + BRANCHES), np.int32)  # sequences of the tokens of trees
        self._batch = llama_cpp.llama_batch(
            token=self._tokens.ctypes.data_as(int32),
            pos=self._positions.ctypes.data_as(int32),
            n_seq_id=self._counts.ctypes.data_as(int32),
            seq_id=self._sequences,
            logits=self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def length(self, text: int) -> int:
        """Return how many tokens a text has, which is unknown otherwise after an interrupt."""
        if self._context is None:
            return 0
        return int(self._llama.llama_memory_seq_pos_max(self._context.memory, text)) + 1

    def make_room(self, tokens: int) -> None:
        """Grow the cache, if it must, to hold as many tokens more."""
        old, total = self._context, sum(map(self.length, range(self._count))) + tokens
        if old is None or total > old.size:
            most = self._count * self._engine.context
            new = Context(self._engine, min(max(total, 2 * old.size if old else FIRST), most), self._count)
            if old is not None:
                new.take(old)
            self._context = new

    def read(self, parts: Sequence[Part]) -> Logits:
        """Read all parts in one pass, for which there is room; return a view on their rows of logits.

        Raises DriverFailed if llama.cpp cannot read them; texts then hold what they held, or nothing.
        """
        context, held = self._context, [self.length(part.text) for part in parts]
        assert context is not None
        with context.busy:
            at = branches = 0
            for part, first in zip(parts, held, strict=True):
                end = at + part.size
                tree = Tree.of(first, part.tokens, part.rows, part.branches)
                self._tokens[at:end] = [*part.tokens, *(branch.token for branch in part.branches)]
                self._positions[at:end] = tree.positions()
                self._wanted[at:end] = 0
                self._wanted[end - part.rows - len(part.branches) : end] = 1
                self._counts[at:end] = 1
                self._sequences[at:end] = [self._number[part.text]] * part.size
                if part.branches:
                    self._branch(part.text, at, tree, branches)
                at, branches = end, branches + len(part.branches)
            self._batch.n_tokens = at
            LOG.clear()
            status = self._llama.llama_decode(context.handle, self._batch)
            for branch in range(branches):
                self._llama.llama_memory_seq_rm(context.memory, self._count + 1 + branch, -1, -1)
            if status:
                why = logged_reason(f"status {status}")
                for part, first in zip(parts, held, strict=True):
                    self.rewind(part.text, first)
                raise DriverFailed(
                    f"llama.cpp cannot read {at} tokens: {why}",
                    "Try `--engine llamacpp:device=CPU`, or a smaller `batch`",
                )
            rows = sum(part.rows + len(part.branches) for part in parts)
            return context.logits(rows, self._engine.vocab)

    def _branch(self, text: int, at: int, tree: Tree, before: int) -> None:
        """Let the tokens of a pass from place `at` on be a tree's: each is in the sequences that see it.

        Other texts have `before` branches in the pass.
        """
        assert self._context is not None
        sees, own = tree.sees(), self._count + 1 + before
        for sequence in range(own, own + len(tree.parents)):
            self._llama.llama_memory_seq_cp(self._context.memory, text, sequence, -1, -1)
        int32 = ctypes.POINTER(ctypes.c_int32)
        for token in range(tree.size):
            inside = own + np.flatnonzero(sees[tree.path :, token])
            sequences = [text, *inside] if token < tree.path else inside
            self._shared[at + token, : len(sequences)] = sequences
            self._counts[at + token] = len(sequences)
            self._sequences[at + token] = ctypes.cast(self._shared[at + token :].ctypes.data, int32)

    def rewind(self, text: int, length: int) -> int:
        """Keep at most `length` tokens of a text; none if llama.cpp cannot remove the others."""
        held = self.length(text)
        if self._context is None or length >= held:
            return held
        llama, memory, window = self._llama, self._context.memory, self._engine.weights.window
        needed = (
            max(length - window + 1, 0) if window else 0
        )  # the earliest token that the next one attends to
        whole = llama.llama_memory_seq_pos_min(memory, text) <= needed
        if whole and llama.llama_memory_seq_rm(memory, text, length, -1):
            return length
        llama.llama_memory_seq_rm(memory, text, -1, -1)
        return 0

    def export_kv(self, text: int, first: int, last: int) -> bytes:
        """Return llama.cpp's state of these tokens, as a sequence of their own."""
        assert self._context is not None
        return self._context.state(text, first, last)

    def import_kv(self, text: int, piece: bytes, count: int) -> None:
        """Append `count` tokens by their state; raises ValueError for bytes that are none."""
        held = self.length(text)
        self.make_room(count)
        assert self._context is not None
        self._context.append(text, piece)
        if self.length(text) != held + count:
            self.rewind(text, held)
            raise ValueError(f"{len(piece)} bytes are not the KV cache of {count} tokens")


class Context:
    """A llama_context: the KV cache of `texts` texts and the logits of its last pass."""

    def __init__(self, engine: Settings, size: int, texts: int) -> None:
        import llama_cpp

        self._llama = llama_cpp
        self.size = size
        self._weights = engine.weights  # the weights must outlive it
        params = llama_cpp.llama_context_default_params()
        for name, value in engine.context_params.items():
            setattr(params, name, value)
        params.n_ctx = size
        params.n_seq_max = texts + (1 + BRANCHES) * engine.weights.keeps_all_tokens
        self._moving = texts  # the sequence of a piece that is being exported or imported
        LOG.clear()
        self.handle = run_uninterrupted(llama_cpp.llama_init_from_model, engine.weights.handle, params)
        if not self.handle:
            raise DriverFailed(
                f"llama.cpp cannot allocate a KV cache of {size} tokens: {logged_reason()}",
                "Choose a smaller `context`, or another `kv`",
            )
        self.busy = threading.Lock()
        engine.weights.contexts.add(self.handle)
        weakref.finalize(self, free_context, llama_cpp, self.handle, engine.weights.contexts, self.busy)
        self.memory = llama_cpp.llama_get_memory(self.handle)

    def take(self, other: Context) -> None:
        """Copy the texts of another context, bit for bit."""
        state = (ctypes.c_uint8 * self._llama.llama_state_get_size(other.handle))()
        self._llama.llama_state_get_data(other.handle, state, len(state))
        if not self._llama.llama_state_set_data(self.handle, state, len(state)):
            raise DriverFailed(f"llama.cpp cannot copy a KV cache: {logged_reason()}")

    def state(self, text: int, first: int, last: int) -> bytes:
        """Return the state of the tokens [first, last) of a text."""
        try:
            self._llama.llama_memory_seq_cp(self.memory, text, self._moving, first, last)
            state = (ctypes.c_uint8 * self._llama.llama_state_seq_get_size(self.handle, self._moving))()
            size = self._llama.llama_state_seq_get_data(self.handle, state, len(state), self._moving)
            return bytes(memoryview(state)[:size])
        finally:
            self._llama.llama_memory_seq_rm(self.memory, self._moving, -1, -1)

    def append(self, text: int, state: bytes) -> None:
        """Append the tokens of a `state` to a text, at their positions; nothing if the bytes are no state."""
        given = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        try:
            if self._llama.llama_state_seq_set_data(self.handle, given, len(state), self._moving):
                self._llama.llama_memory_seq_cp(self.memory, self._moving, text, -1, -1)
        finally:
            self._llama.llama_memory_seq_rm(self.memory, self._moving, -1, -1)

    def logits(self, count: int, vocab: int) -> Logits:
        """Return the last pass's logits [count, vocab]: a view that keeps this context alive."""
        if not count:
            return np.empty((0, vocab), np.float32)
        start = ctypes.cast(self._llama.llama_get_logits(self.handle), ctypes.c_void_p).value
        return np.asarray(View(self, start, (count, vocab)))


class View:
    """Floats in memory that `owner` keeps alive, for numpy."""

    def __init__(self, owner: Context, start: int | None, shape: tuple[int, int]) -> None:
        self.owner = owner
        self.__array_interface__ = {"data": (start, False), "shape": shape, "typestr": "<f4", "version": 3}


def passes(count: int, rows: int, batch: int) -> Iterator[tuple[int, int]]:
    """Yield the passes that read `count` tokens: the tokens of each, and how many of the last get logits."""
    while count > batch or rows > ROWS:
        size = min(batch, count - rows) or ROWS
        wanted = 0 if count > rows else size
        yield size, wanted
        count, rows = count - size, rows - wanted
    yield count, rows
