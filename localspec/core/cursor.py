"""A session and the tokens it holds, so that no caller ever rewinds."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.core.contracts import ExportableSession, PictureSession, Session, TreeSession
from localspec.core.types import Branch, Logits, Picture, Tokens, shared_prefix


class Cursor:
    """Reads texts in one session and computes only what differs from the last text.

    `tokens` are those the session holds. To read a text, the cursor rewinds to the shared prefix and reads
    the rest: a rejected draft, a second chat turn, an edited prompt and an aborted answer are one case. It
    reads a long rest in chunks of `chunk` tokens, so that an interrupt does not wait for all of it.

    `chunks` is the number of whole prefill chunks at the beginning of the text, each read in one pass. They
    do not depend on what follows, so an `exportable` cursor can write them to disk and import them.
    """

    def __init__(self, session: Session, chunk: int | None = None) -> None:
        self.session = session
        self.chunk = chunk or session.chunk
        self.tokens: list[int] = []
        self.chunks = 0
        self._pictures = False  # whether some of `tokens` stand for pictures, of which they say nothing
        self._unsure = False  # an interrupt may have left more in the session than `tokens`

    def read(self, tokens: Tokens, rows: int = 1, branches: Sequence[Branch] = ()) -> Logits:
        """Return the logits [rows + branches, vocab] of the last `rows` tokens of the text `tokens`.

        Those of `branches`, which the session must read, come last. Effects: the session holds
        `tokens` afterwards. Raises ContextFull; the session then holds what it held. The logits may be a view
        of the engine's memory, valid until the next read.
        """
        assert 0 <= rows <= len(tokens)
        at = min(shared_prefix(self.tokens, tokens), len(tokens) - rows)
        if at < len(self.tokens) or self._unsure:
            at = self._rewind(at)
        while len(tokens) - at > max(self.chunk, rows):
            size = min(self.chunk, len(tokens) - at - rows)
            self._forward(tokens[at : at + size], 0)
            at += size
        return self._forward(tokens[at:], rows, branches)

    def see(self, pictures: Sequence[Picture], prompt: Tokens) -> None:
        """Let picture tokens of the texts to come stand for `pictures`; the session must be one that sees.

        The session then holds what is before the first picture that changed.
        """
        assert isinstance(self.session, PictureSession)
        held = self._claim_nothing()
        kept = self.session.see(pictures, prompt)
        del held[kept:]
        self._pictures = bool(pictures)
        self._claim(held)

    @property
    def branches(self) -> int:
        """Return how many branches the session reads beside its text."""
        return self.session.branches if isinstance(self.session, TreeSession) else 0

    @property
    def exportable(self) -> bool:
        """Return whether the session exports and imports whole chunks of its text, which has no picture."""
        session = self.session
        able = isinstance(session, ExportableSession) and self.chunk % session.block_size == 0
        return able and not self._pictures

    def export_chunk(self, number: int) -> bytes:
        """Return the KV cache of one of the `chunks`."""
        assert isinstance(self.session, ExportableSession)
        return self.session.export_kv(number * self.chunk, (number + 1) * self.chunk)

    def import_chunk(self, tokens: Tokens, piece: bytes) -> None:
        """Append the chunk `tokens` by its KV cache instead of reading it; only whole chunks may be held.

        Raises ContextFull, and ValueError for bytes that are no such chunk.
        """
        assert isinstance(self.session, ExportableSession)
        assert len(self.tokens) == self.chunks * self.chunk
        held = self._claim_nothing()
        self.session.import_kv(piece, self.chunk)
        held.extend(tokens)
        self.chunks += 1
        self._claim(held)

    def _rewind(self, length: int) -> int:
        held = self._claim_nothing()
        kept = self.session.rewind(length)
        del held[kept:]
        self._claim(held)
        return kept

    def _forward(self, tokens: Tokens, rows: int, branches: Sequence[Branch] = ()) -> Logits:
        held = self._claim_nothing()
        try:
            if branches:
                assert isinstance(self.session, TreeSession)
                logits = self.session.forward_tree(tokens, rows, branches)
            else:
                logits = self.session.forward(tokens, rows)
        except BaseException:
            self._claim(held[: self.session.rewind(len(held))])
            raise
        whole = len(held) == self.chunks * self.chunk and len(tokens) == self.chunk
        held.extend(tokens)
        self.chunks += whole
        self._claim(held)
        return logits

    def _claim_nothing(self) -> list[int]:
        """Return the held tokens and forget them, so that an interrupt leaves no false claim."""
        held = self.tokens
        self._unsure = True
        self.tokens = []
        return held

    def _claim(self, held: list[int]) -> None:
        self.tokens = held
        self.chunks = min(self.chunks, len(held) // self.chunk)
        self._unsure = False
