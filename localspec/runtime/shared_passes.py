"""Several answers of one model at once: their threads meet before a pass, and one of them reads for all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TypeVar

import numpy as np

from localspec.core.contracts import (
    Engine,
    ExportableSession,
    LayerStates,
    Read,
    Session,
    SharedPasses,
    TreeSession,
)
from localspec.core.types import Branch, Company, Logits, Tokens
from localspec.runtime.loading import LoadSpec

TARGET, DRAFT = 0.5, 0.15  # of a pass: as long as it waits for other texts; a draft may be at its end
Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class _Waiting:
    """A read that waits for its pass, and then what came of it."""

    read: Read
    since: float
    logits: Logits | None = None
    error: Exception | None = None
    company: Company = Company()

    @property
    def done(self) -> bool:
        return self.logits is not None or self.error is not None


class Passes:
    """The passes of one engine, in which the texts of several threads share.

    A pass starts once every open text waits for it, or the first has waited `patience` times as long as the
    last pass took: a text whose draft takes long joins a later one, and none waits for it before. The thread
    that finds this so reads for all. A long prompt comes in chunks, each of which shares its pass with the
    tokens of the other texts, so no text waits for another's prompt.
    """

    def __init__(self, shared: SharedPasses, patience: float) -> None:
        self.shared, self._patience = shared, patience
        self._changed = threading.Condition()
        self._open: set[SharedEngine] = set()
        self._waiting: dict[SharedEngine, _Waiting] = {}
        self._reading = False
        self._visitors = 0  # threads that do something between two passes
        self._seconds = 0.0  # of the last pass

    def read(self, text: SharedEngine, read: Read) -> tuple[Logits, Company]:
        """Return the logits of a read, for the caller to keep, and the company of its pass.

        Raises what the engine raises for this read.
        """
        with self._changed:
            own = self._waiting[text] = _Waiting(read, perf_counter())
            self._open.add(text)
            self._changed.notify_all()
            while not own.done:
                if self._reading or self._visitors:
                    self._changed.wait()
                elif (left := self._left()) > 0:
                    self._changed.wait(left)
                else:
                    self._pass()
        if own.error is not None:
            raise own.error
        assert own.logits is not None
        return own.logits, own.company

    def leave(self, text: SharedEngine) -> None:
        """Let no pass wait for a text any more: its answer has ended."""
        with self._changed:
            self._open.discard(text)
            self._changed.notify_all()

    def between(self, work: Callable[[], Result]) -> Result:
        """Return the result of `work`, which runs before the next pass, while none does."""
        with self._changed:
            self._visitors += 1
            try:
                while self._reading:
                    self._changed.wait()
                return work()
            finally:
                self._visitors -= 1
                self._changed.notify_all()

    def opened(self, text: SharedEngine) -> None:
        """Let the next pass wait for a text that is about to read."""
        with self._changed:
            self._open.add(text)

    def _left(self) -> float:
        """Return the seconds for which the next pass still waits."""
        if self._open <= self._waiting.keys():
            return 0.0
        first = min(waiting.since for waiting in self._waiting.values())
        return first + self._patience * self._seconds - perf_counter()

    def _pass(self) -> None:
        """Read for all that wait; others may come and wait for the next pass meanwhile."""
        self._open = set(self._waiting)
        batch, self._waiting = list(self._waiting.values()), {}
        self._reading = True
        self._changed.release()
        started = perf_counter()
        try:
            self._read(batch)
        finally:
            self._changed.acquire()
            self._reading, self._seconds = False, perf_counter() - started
            total = sum(_size(one.read) for one in batch)
            for one in batch:
                one.company = Company(len(batch) - 1, total - _size(one.read), started - one.since)
            self._changed.notify_all()

    def _read(self, batch: Sequence[_Waiting]) -> None:
        """Enter the logits of each read, or its error: one that fails fails alone."""
        try:
            found = self.shared.forward([one.read for one in batch])
            for one, logits in zip(batch, found, strict=True):
                one.logits = logits.copy()
        except Exception as error:  # noqa: BLE001 - the thread of the read raises it again
            if len(batch) > 1:
                for one in batch:
                    self._read([one])
            else:
                batch[0].error = error


def _size(read: Read) -> int:
    """Return the tokens of a read that its pass computes."""
    return len(read.tokens) + len(read.branches)


def shared_engines(
    engines: Mapping[LoadSpec, Engine], target: LoadSpec, texts: int
) -> list[dict[LoadSpec, Engine]]:
    """Return engines for each of several texts, whose passes are shared; those for one if that is all.

    The target's engine must read several texts in a pass. A draft's engine that does not has passes of its
    own for each text.
    """
    if texts == 1 or (shared := engines[target].shared_passes(texts)) is None:
        return [dict(engines)]
    passes = {target: Passes(shared, TARGET)}
    for spec in engines.keys() - {target}:
        if (shared := engines[spec].shared_passes(texts)) is not None:
            passes[spec] = Passes(shared, DRAFT)
    return [
        {
            spec: SharedEngine(engine, passes[spec]) if spec in passes else engine
            for spec, engine in engines.items()
        }
        for _ in range(texts)
    ]


class SharedEngine(Engine):
    """An engine for one of several texts, whose passes are shared with the others'."""

    def __init__(self, engine: Engine, passes: Passes) -> None:
        self.vocab, self.context, self.device = engine.vocab, engine.context, engine.device
        self.passes = passes

    def session(self) -> Session:
        """Return a new, empty session; those of one engine are for one thread at a time."""
        session = self.passes.between(self.passes.shared.session)
        exportable, trees = isinstance(session, ExportableSession), isinstance(session, TreeSession)
        if isinstance(session, LayerStates):
            return (SharedTappedTreeSession if trees else SharedTappedSession)(self, session)
        return KINDS[exportable, trees](self, session)

    def leave(self) -> None:
        """Let no pass wait for this text any more."""
        self.passes.leave(self)


class SharedSession(Session):
    """One text, read in passes that other texts share."""

    def __init__(self, text: SharedEngine, session: Session) -> None:
        self._text, self._session = text, session
        self.vocabulary, self.chunk = session.vocabulary, session.chunk

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return the logits [rows, vocab] of the last `rows` of them."""
        return self._read(tokens, rows)

    def _read(self, tokens: Tokens, rows: int, branches: Sequence[Branch] = ()) -> Logits:
        if not tokens and not branches:
            return np.empty((0, self._text.vocab), np.float32)
        read = Read(self._session, tokens, rows, branches)
        logits, self.company = self._text.passes.read(self._text, read)
        return logits

    def rewind(self, length: int) -> int:
        """Keep at most the first `length` tokens and return the number that was really kept."""
        self._text.passes.opened(self._text)
        return self._text.passes.between(lambda: self._session.rewind(length))


class SharedTappedSession(SharedSession, LayerStates):
    """One text whose hidden states are kept."""

    def states(self) -> Logits:
        """Return the hidden states [tokens, layers * width] of the text."""
        assert isinstance(self._session, LayerStates)
        return self._session.states()


class SharedExportableSession(SharedSession, ExportableSession):
    """One text whose KV cache can be exported."""

    @property
    def _exportable(self) -> ExportableSession:
        assert isinstance(self._session, ExportableSession)
        return self._session

    @property
    def block_size(self) -> int:
        """Tokens of the smallest piece."""
        return self._exportable.block_size

    def export_kv(self, first: int, last: int) -> bytes:
        """Return the KV cache of the tokens [first, last)."""
        return self._text.passes.between(lambda: self._exportable.export_kv(first, last))

    def import_kv(self, piece: bytes, count: int) -> None:
        """Append `count` tokens by their KV cache."""
        self._text.passes.between(lambda: self._exportable.import_kv(piece, count))


class SharedTreeSession(SharedSession, TreeSession):
    """One text, beside which branches are read."""

    def __init__(self, text: SharedEngine, session: Session) -> None:
        super().__init__(text, session)
        assert isinstance(session, TreeSession)
        self.branches = session.branches

    def forward_tree(self, tokens: Tokens, rows: int, branches: Sequence[Branch]) -> Logits:
        """Append `tokens` and read `branches` beside them; return logits [rows + branches, vocab]."""
        return self._read(tokens, rows, branches)


class SharedExportableTreeSession(SharedExportableSession, SharedTreeSession):
    """One text, beside which branches are read, and whose KV cache can be exported."""


class SharedTappedTreeSession(SharedTappedSession, SharedTreeSession):
    """One text whose hidden states are kept, and beside which branches are read."""


KINDS: dict[tuple[bool, bool], type[SharedSession]] = {  # exportable, trees
    (False, False): SharedSession,
    (True, False): SharedExportableSession,
    (False, True): SharedTreeSession,
    (True, True): SharedExportableTreeSession,
}
