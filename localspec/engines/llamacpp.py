"""llama.cpp: a GGUF file as it is, on the devices that llama.cpp was built for."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np

from localspec.core.contracts import Engine, ExportableSession, Session
from localspec.core.types import Logits, Tokens
from localspec.errors import (
    BadValue,
    ContextFull,
    DriverFailed,
)
from localspec.formats.gguf.libllama import (
    LOG,
    free_context,
    logged_reason,
    open_weights,
    physical_cores,
    run_uninterrupted,
)
from localspec.plugins import Option

FIRST = 1024  # tokens of a new session's KV cache; doubled when full
TEXT, MOVING = 0, 1  # llama.cpp's sequences: the text, and a piece of it being exported or imported
ROWS = 64  # maximum logits per pass: llama.cpp reserves memory for this many, and aborts at one more
KV = {"f16": 1, "f32": 0, "bf16": 30, "q8_0": 8, "q5_1": 7, "q5_0": 6, "q4_1": 3, "q4_0": 2}  # ggml_type
FLASH = {"auto": -1, "on": 1, "off": 0}  # llama_flash_attn_type


class LlamaCpp(Engine):
    """Runs a GGUF file on llama.cpp; engines on one file and device share its weights.

    A session's cache holds 1024 tokens at first and doubles when they are full. A rewind is free and exact.
    A recurrent state can only start again, and a sliding window cannot go back behind what it still holds.
    """

    forms = ("gguf",)

    def __init__(
        self,
        model: Path,
        cache: Path | None = None,
        *,
        device: Annotated[str, Option("a device as llama.cpp names it, `auto` for its choice")] = "auto",
        threads: Annotated[int, Option("threads, 0 for one per physical core", least=0, most=512)] = 0,
        layers: Annotated[int, Option("layers on the GPU, -1 for all", least=-1, most=10_000)] = -1,
        kv: Annotated[str, Option("precision of the KV cache", choices=tuple(KV))] = "f16",
        flash: Annotated[str, Option("flash attention", choices=tuple(FLASH))] = "auto",
        batch: Annotated[int, Option("maximum tokens per pass", least=ROWS, most=8192)] = 512,
        context: Annotated[int, Option("maximum tokens of a text, 0 for the model's own", least=0)] = 0,
        repack: Annotated[bool, Option("repack weights for the CPU")] = True,
    ) -> None:
        del cache
        if kv.startswith("q") and flash == "off":
            raise BadValue(f"`kv` of `llamacpp` is `{kv}` and `flash` is `off`", "Leave `flash` out")
        self.weights = open_weights(model, device, layers, repack)
        if context > self.weights.context:
            raise BadValue(
                f"`context` of `llamacpp` is `{context}` and `{model}` was trained on {self.weights.context}",
                "Leave `context` out",
            )
        self.device = self.weights.device
        self.vocab = self.weights.vocab
        self.context = context or self.weights.context
        self.batch = batch
        self.context_params = {
            "type_k": KV[kv],
            "type_v": KV[kv],
            "flash_attn_type": FLASH[flash],
            "n_threads": threads or physical_cores(),
            "n_threads_batch": threads or physical_cores(),
            "n_batch": batch,
            "n_ubatch": batch,
            "n_outputs_max": ROWS,
            "swa_full": True,  # a smaller cache drops tokens that a rewind needs
            "n_seq_max": 1 + self.weights.keeps_all_tokens,
            "kv_unified": True,  # all sequences in one cache
        }

    def session(self) -> Session:
        """Return a new, empty session with a cache of its own, made at its first pass."""
        return (LlamaCppExportableSession if self.weights.keeps_all_tokens else LlamaCppSession)(self)


class LlamaCppSession(Session):
    """One text in a llama_context; only llama.cpp knows how many tokens that holds."""

    def __init__(self, engine: LlamaCpp) -> None:
        import llama_cpp

        self._llama = llama_cpp
        self._engine = engine
        self._context: Context | None = None
        self._tokens = np.zeros(engine.batch, np.int32)
        self._wanted = np.zeros(engine.batch, np.int8)
        self._batch = llama_cpp.llama_batch(
            token=self._tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            logits=self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )  # without positions: llama.cpp continues at the end of its memory

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return a view [rows, vocab] of llama.cpp's logits, a copy above ROWS.

        Raises DriverFailed if llama.cpp cannot read them; the session then holds what it held, or nothing.
        """
        held = self._length()
        total = held + len(tokens)
        if total > self._engine.context:
            raise ContextFull(total, self._engine.context)
        if total == held:
            return np.empty((0, self._engine.vocab), np.float32)
        context = self._with_room(total)
        parts: list[Logits] = []
        at = 0
        with context.busy:
            for size, wanted in passes(len(tokens), rows, self._engine.batch):
                if wanted and parts:
                    parts[-1] = parts[-1].copy()
                self._decode(context, tokens[at : at + size], wanted, held)
                at += size
                parts.append(context.logits(wanted, self._engine.vocab))
        return parts[-1] if rows <= ROWS else np.concatenate(parts)

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens; none if llama.cpp cannot remove the others."""
        held = self._length()
        if self._context is None or length >= held:
            return held
        llama, memory, window = self._llama, self._context.memory, self._engine.weights.window
        needed = (
            max(length - window + 1, 0) if window else 0
        )  # the earliest token that the next one attends to
        whole = llama.llama_memory_seq_pos_min(memory, TEXT) <= needed
        if whole and llama.llama_memory_seq_rm(memory, TEXT, length, -1):
            return length
        llama.llama_memory_clear(memory, False)
        return 0

    def _length(self) -> int:
        """Return how many tokens the memory holds, which is unknown otherwise after an interrupt."""
        if self._context is None:
            return 0
        return int(self._llama.llama_memory_seq_pos_max(self._context.memory, TEXT)) + 1

    def _with_room(self, total: int) -> Context:
        """Return a context for `total` tokens: the present one, or a larger one with the same text."""
        old = self._context
        if old is None or total > old.size:
            size = min(max(total, 2 * old.size if old else FIRST), self._engine.context)
            new = Context(self._engine, size)
            if old is not None:
                new.take(old)
            self._context = old = new
        return old

    def _decode(self, context: Context, tokens: Tokens, wanted: int, held: int) -> None:
        """Append tokens, the last `wanted` of them with logits; on failure keep the first `held` tokens."""
        count = len(tokens)
        self._tokens[:count] = tokens
        self._wanted[:count] = 0
        self._wanted[count - wanted : count] = 1
        self._batch.n_tokens = count
        LOG.clear()
        status = self._llama.llama_decode(context.handle, self._batch)
        if status:
            why = logged_reason(f"status {status}")
            self.rewind(held)
            raise DriverFailed(
                f"llama.cpp cannot read {count} tokens: {why}",
                "Try `--engine llamacpp:device=CPU`, or a smaller `batch`",
            )


class LlamaCppExportableSession(LlamaCppSession, ExportableSession):
    """One text whose KV cache holds each token separately."""

    block_size = 1

    def export_kv(self, first: int, last: int) -> bytes:
        """Return llama.cpp's state of these tokens, as a sequence of their own."""
        assert self._context is not None
        return self._context.state(first, last)

    def import_kv(self, piece: bytes, count: int) -> None:
        """Append tokens by their state."""
        held = self._length()
        if held + count > self._engine.context:
            raise ContextFull(held + count, self._engine.context)
        self._with_room(held + count).append(piece)
        if self._length() != held + count:
            self.rewind(held)
            raise ValueError(f"{len(piece)} bytes are not the KV cache of {count} tokens")


class Context:
    """A llama_context: the KV cache of one text and the logits of its last pass."""

    def __init__(self, engine: LlamaCpp, size: int) -> None:
        import llama_cpp

        self._llama = llama_cpp
        self.size = size
        self._weights = engine.weights  # the weights must outlive it
        params = llama_cpp.llama_context_default_params()
        for name, value in engine.context_params.items():
            setattr(params, name, value)
        params.n_ctx = size
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
        """Copy the text of another context, bit for bit."""
        state = (ctypes.c_uint8 * self._llama.llama_state_get_size(other.handle))()
        self._llama.llama_state_get_data(other.handle, state, len(state))
        if not self._llama.llama_state_set_data(self.handle, state, len(state)):
            raise DriverFailed(f"llama.cpp cannot copy a KV cache: {logged_reason()}")

    def state(self, first: int, last: int) -> bytes:
        """Return the state of the tokens [first, last)."""
        try:
            self._llama.llama_memory_seq_cp(self.memory, TEXT, MOVING, first, last)
            state = (ctypes.c_uint8 * self._llama.llama_state_seq_get_size(self.handle, MOVING))()
            size = self._llama.llama_state_seq_get_data(self.handle, state, len(state), MOVING)
            return bytes(memoryview(state)[:size])
        finally:
            self._llama.llama_memory_seq_rm(self.memory, MOVING, -1, -1)

    def append(self, state: bytes) -> None:
        """Append the tokens of a `state`, at their positions; nothing of bytes that are no state."""
        given = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        try:
            if self._llama.llama_state_seq_set_data(self.handle, given, len(state), MOVING):
                self._llama.llama_memory_seq_cp(self.memory, MOVING, TEXT, -1, -1)
        finally:
            self._llama.llama_memory_seq_rm(self.memory, MOVING, -1, -1)

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
