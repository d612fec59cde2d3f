"""What a reasoning model thinks before it answers, told from the answer as it streams."""

from __future__ import annotations

from typing import NamedTuple

from localspec.core.stop import overlap

OPENS, CLOSES = "<think>", "</think>"


class Said(NamedTuple):
    """A piece of text, and whether it is thought rather than said."""

    text: str
    thought: bool = False


class ReasoningParser:
    """Splits an answer into what is thought, between the marks at its beginning, and what is said.

    `inside` tells that the prompt ends with the opening mark, as some chat templates have it.
    """

    def __init__(self, inside: bool = False) -> None:
        self._held = ""
        self._inside = inside
        self._over = False  # what comes now is said
        self._blank = False  # blanks between the thought and the answer are nobody's

    def push(self, piece: str) -> list[Said]:
        """Return what is certain after `piece`."""
        self._held += piece
        found = []
        if not self._inside and not self._over:
            start = self._held.lstrip()
            if start.startswith(OPENS):
                self._inside, self._held = True, start[len(OPENS) :].lstrip("\n")
            elif not OPENS.startswith(start):
                self._over = True
        if self._inside:
            thought, closes, rest = self._held.partition(CLOSES)
            keep = 0 if closes else overlap(thought, CLOSES)
            found.append(Said(thought[: len(thought) - keep], thought=True))
            self._held = rest if closes else thought[len(thought) - keep :]
            if closes:
                self._inside, self._over, self._blank = False, True, True
        if self._blank:
            self._held = self._held.lstrip()
            self._blank = not self._held
        if self._over:
            found.append(Said(self._held))
            self._held = ""
        return [said for said in found if said.text]

    def end(self) -> list[Said]:
        """Return what is left when the answer has ended."""
        rest = Said(self._held, self._inside)
        self._held = ""
        return [rest] if rest.text else []


def split(text: str, inside: bool = False) -> tuple[str, str]:
    """Return what is thought in an answer, and what is said; blanks around the thought belong to neither."""
    reader = ReasoningParser(inside)
    pieces = [*reader.push(text), *reader.end()]
    thought = "".join(piece.text for piece in pieces if piece.thought)
    return thought.strip(), "".join(piece.text for piece in pieces if not piece.thought)
