"""The engine, and its sessions in KV caches of their own or in a common one."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Annotated

import numpy as np

from localspec.core.contracts import Engine, ExportableSession, Read, Session, SharedPasses, TreeSession
from localspec.core.types import Branch, Logits, Tokens
from localspec.engines.llamacpp.context import BRANCHES, ROWS, Part, Texts, passes
from localspec.errors import BadValue, ContextFull
from localspec.formats.gguf.libllama import open_weights, physical_cores
from localspec.plugins import Option

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
            "kv_unified": True,  # all sequences in one cache
        }

    def session(self) -> Session:
        """Return a new, empty session with a cache of its own, made at its first pass."""
        kind = LlamaCppExportableSession if self.weights.keeps_all_tokens else LlamaCppSession
        return kind(self, Texts(self, 1), 0)

    def shared_passes(self, texts: int) -> SharedPasses | None:
        """Return sessions of texts in one cache; None for a cache that drops tokens or is a state."""
        return LlamaCppSharedPasses(self, texts) if self.weights.keeps_all_tokens else None


class LlamaCppSession(Session):
    """One of the texts in a KV cache."""

    def __init__(self, engine: LlamaCpp, texts: Texts, text: int) -> None:
        self._engine, self._texts, self.text = engine, texts, text

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return a view [rows, vocab] of llama.cpp's logits, a copy above ROWS.

        Raises DriverFailed if llama.cpp cannot read them; the session then holds what it held, or nothing.
        """
        self.check(tokens)
        if not tokens:
            return np.empty((0, self._engine.vocab), np.float32)
        self._texts.make_room(len(tokens))
        held, at = self._texts.length(self.text), 0
        parts: list[Logits] = []
        for size, wanted in passes(len(tokens), rows, self._engine.batch):
            if wanted and parts:
                parts[-1] = parts[-1].copy()
            try:
                parts.append(self._texts.read([Part(self.text, tokens[at : at + size], wanted)]))
            except BaseException:
                self.rewind(held)
                raise
            at += size
        return parts[-1] if rows <= ROWS else np.concatenate(parts)

    def check(self, tokens: Tokens) -> None:
        """Raise ContextFull if the context has no room for `tokens`."""
        total = self._texts.length(self.text) + len(tokens)
        if total > self._engine.context:
            raise ContextFull(total, self._engine.context)

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens; none if llama.cpp cannot remove the others."""
        return self._texts.rewind(self.text, length)


class LlamaCppExportableSession(LlamaCppSession, ExportableSession, TreeSession):
    """One text whose KV cache holds each token separately."""

    block_size = 1
    branches = BRANCHES

    def forward_tree(self, tokens: Tokens, rows: int, branches: Sequence[Branch]) -> Logits:
        """Append `tokens` and read `branches` beside them; return a view [rows + branches, vocab].

        Where a draft is so long that branches would need another pass, their rows are zeros, which tell
        nothing.
        """
        self.check([*tokens, *(branch.token for branch in branches)])
        size = len(tokens) + len(branches)
        if size > self._engine.batch or rows + len(branches) > ROWS:
            unread = np.zeros((len(branches), self._engine.vocab), np.float32)
            return np.concatenate([self.forward(tokens, rows), unread])
        self._texts.make_room(size)
        return self._texts.read([Part(self.text, tokens, rows, branches)])

    def export_kv(self, first: int, last: int) -> bytes:
        """Return llama.cpp's state of these tokens, as a sequence of their own."""
        return self._texts.export_kv(self.text, first, last)

    def import_kv(self, piece: bytes, count: int) -> None:
        """Append tokens by their state."""
        total = self._texts.length(self.text) + count
        if total > self._engine.context:
            raise ContextFull(total, self._engine.context)
        self._texts.import_kv(self.text, piece, count)


class LlamaCppSharedPasses(SharedPasses):
    """Texts in one KV cache; a pass reads tokens of as many as fit in a batch."""

    def __init__(self, engine: LlamaCpp, texts: int) -> None:
        count = 2 * texts + 1  # a text may be made before the one that it replaces is gone
        self._engine, self._texts = engine, Texts(engine, count)
        self._free = list(range(count))

    def session(self) -> Session:
        """Return a new, empty session."""
        text = self._free.pop()
        self._texts.rewind(text, 0)
        session = LlamaCppExportableSession(self._engine, self._texts, text)
        weakref.finalize(session, self._free.append, text).atexit = False
        return session

    def forward(self, reads: Sequence[Read]) -> list[Logits]:
        """Read tokens of several texts in as few passes as hold them; return copies, or views of one."""
        for read in reads:
            assert isinstance(read.session, LlamaCppSession)
            read.session.check([*read.tokens, *(branch.token for branch in read.branches)])
        batches = list(self._batches(reads))
        if len(batches) == 1:
            return list(self._read(batches[0]))
        return [logits.copy() for batch in batches for logits in self._read(batch)]

    def _batches(self, reads: Sequence[Read]) -> Iterator[list[Read]]:
        """Yield the reads in batches that fit in a pass; one that fits in none is a batch of its own."""
        batch: list[Read] = []
        for read in reads:
            tokens = sum(len(one.tokens) + len(one.branches) for one in [*batch, read])
            rows = sum(one.rows + len(one.branches) for one in [*batch, read])
            branches = sum(len(one.branches) for one in [*batch, read])
            if batch and (tokens > self._engine.batch or rows > ROWS or branches > BRANCHES):
                yield batch
                batch = []
            batch.append(read)
        yield batch

    def _read(self, batch: Sequence[Read]) -> Sequence[Logits]:
        if len(batch) == 1:
            session, tokens, rows, branches = batch[0]
            assert isinstance(session, LlamaCppExportableSession)
            return [
                session.forward_tree(tokens, rows, branches) if branches else session.forward(tokens, rows)
            ]
        parts = []
        for read in batch:
            assert isinstance(read.session, LlamaCppSession)
            parts.append(Part(read.session.text, read.tokens, read.rows, read.branches))
        self._texts.make_room(sum(part.size for part in parts))
        logits = self._texts.read(parts)
        return np.split(logits, list(accumulate(part.rows + len(part.branches) for part in parts))[:-1])
