"""Long texts in the input line: each is one character there, shown as its number of lines."""

from __future__ import annotations

MAX_LINES = 10  # of a text that is shown whole
FIRST = 0x10A000  # of the characters that stand for texts, from a range for private use


class Folds:
    """Texts of over ten lines, and the characters that stand for them in the input line."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}  # by their characters

    def fold(self, text: str) -> str:
        """Return a text, or the character that stands for it if it is long."""
        if text.count("\n") < MAX_LINES and self._texts.keys().isdisjoint(text):
            return text
        for character, known in self._texts.items():
            if known == text:
                return character
        character = chr(FIRST + len(self._texts))
        self._texts[character] = text
        return character

    def fold_known(self, text: str) -> str:
        """Return a text with the character of each text in it that was folded before."""
        for character, known in self._texts.items():
            text = text.replace(known, character)
        return text

    def recalled(self, text: str) -> str:
        """Return a text of the history, folded where it was, or as a whole if it is long."""
        known = self.fold_known(text)
        return known if known != text else self.fold(text)

    def unfold(self, line: str) -> str:
        """Return an input line with its texts."""
        return "".join(self._texts.get(character, character) for character in line)

    def label(self, character: str) -> str | None:
        """Return what is shown for a character that stands for a text, None for any other."""
        text = self._texts.get(character)
        return None if text is None else f"[pasted {text.rstrip().count(chr(10)) + 1:,} lines]"
