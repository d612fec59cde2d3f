"""A reader that knows what it has read, so that no caller ever rewinds."""

from __future__ import annotations

from localspec.core.contracts import ExportableSession, Session
from localspec.core.types import Logits, Tokens, shared_prefix


class Cursor:
    """Reads texts in one session, paying only for what differs from the last one.

    `tokens` are those the session holds. Asked to read a text, the cursor rewinds to the shared prefix and
    reads the rest: a rejected draft, a second chat turn, an edited prompt and an aborted answer are one case.
    A long rest is read in pieces of `chunk` tokens, which the session knows best, so that an interrupt does
    not wait for all of it.

    `pieces` is how many of those were read one after another from the text's beginning: they are the same
    whoever reads them, and a session that is `portable` gives and takes them.
    """

    def __init__(self, session: Session, chunk: int | None = None) -> None:
        self.session = session
        self.chunk = chunk or session.chunk
        self.tokens: list[int] = []
        self.pieces = 0
        self._unsure = False  # an interrupt may have left more in the session than `tokens`

    def read(self, tokens: Tokens, rows: int = 1) -> Logits:
        """Return logits [rows, vocab] after each of the last `rows` tokens of the text `tokens`.

        Effects: the session holds `tokens` afterwards. Raises ContextFull; what was read before still holds.
        The rows may be a view of the engine's memory: they hold until the next read.
        """
        assert 0 <= rows <= len(tokens)
        at = min(shared_prefix(self.tokens, tokens), len(tokens) - rows)
        if at < len(self.tokens) or self._unsure:
            at = self._rewind(at)
        while len(tokens) - at > max(self.chunk, rows):
            size = min(self.chunk, len(tokens) - at - rows)
            self._forward(tokens[at : at + size], 0)
            at += size
        return self._forward(tokens[at:], rows)

    @property
    def portable(self) -> bool:
        """Tell whether the session gives and takes pieces."""
        return isinstance(self.session, ExportableSession) and self.chunk % self.session.grain == 0

    def piece(self, number: int) -> bytes:
        """Return what the session holds of one of the `pieces`."""
        assert isinstance(self.session, ExportableSession)
        return self.session.saved(number * self.chunk, (number + 1) * self.chunk)

    def load(self, tokens: Tokens, piece: bytes) -> None:
        """Hold one piece more, whose tokens these are, instead of reading it; only pieces may be held.

        Raises ContextFull, and ValueError for what is no such piece.
        """
        assert isinstance(self.session, ExportableSession)
        assert len(self.tokens) == self.pieces * self.chunk
        held = self._claim_nothing()
        self.session.load(piece, self.chunk)
        held.extend(tokens)
        self.pieces += 1
        self._claim(held)

    def _rewind(self, length: int) -> int:
        held = self._claim_nothing()
        kept = self.session.rewind(length)
        del held[kept:]
        self._claim(held)
        return kept

    def _forward(self, tokens: Tokens, rows: int) -> Logits:
        held = self._claim_nothing()
        try:
            logits = self.session.forward(tokens, rows)
        except BaseException:
            self._claim(held[: self.session.rewind(len(held))])
            raise
        whole = len(held) == self.pieces * self.chunk and len(tokens) == self.chunk
        held.extend(tokens)
        self.pieces += whole
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
        self.pieces = min(self.pieces, len(held) // self.chunk)
        self._unsure = False
