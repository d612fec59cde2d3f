"""Past answers, kept in a file that several processes may share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from localspec.core.types import Tokens
from localspec.disk import private
from localspec.errors import StorageError
from localspec.library import storage

MARK = b'{"format":"localspec answers'  # the first bytes of a store
PATIENCE = 5.0  # seconds to wait for another process that writes the same store


class Answers(msgspec.Struct, frozen=True):
    """The file: answers, the latest last, in one vocabulary; `width` is the width of its logits."""

    format: Literal["localspec answers 1"]
    vocabulary: str
    width: int
    answers: list[list[Annotated[int, msgspec.Meta(ge=0)]]]


class Store:
    """A file of past answers that several processes may share. Decoding continues without it when it fails.

    A damaged file is started anew; a file that is no store, or another model's, is left alone. The tokens of
    an answer's last step are not kept. `note` says what is wrong; `width` is the width of the model's logits,
    None until they have been seen.
    """

    def __init__(self, path: Path, most: int) -> None:
        self.note: str | None = None
        self.width: int | None = None
        self._path = path
        self._most = most
        self._vocabulary = ""
        self._usable = True
        self._fresh: list[list[int]] = []  # finished answers that are not in the file yet
        self._answer: list[int] = []
        self._from = 0

    def open(self, width: int, vocabulary: str) -> list[list[int]]:
        """Return the answers in the file, if it is of this vocabulary."""
        self.width, self._vocabulary = width, vocabulary
        return self._load()

    def begin(self, prompt_tokens: int) -> None:
        """Start an answer that follows so many tokens."""
        self.close()
        self._from = prompt_tokens

    def see(self, text: Tokens) -> None:
        """Take in the text so far of the answer."""
        self._answer = list(text[self._from :])

    def close(self) -> None:
        """End the answer and write what is not in the file yet."""
        if self._answer:
            self._fresh.append(self._answer)
        self._answer = []
        if self._fresh and self._usable:
            self._save()

    def _load(self) -> list[list[int]]:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            return self._leave(f"cannot be read: {error.strerror}")
        if content and not content.startswith(MARK):
            return self._leave("is not a store of answers and was left alone")
        try:
            found = msgspec.json.decode(content, type=Answers)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.note = f"`{self._path}` was damaged and is started anew" if content else None
            return []
        if (found.vocabulary, found.width) != (self._vocabulary, self.width):
            return self._leave("holds the answers of another model and was left alone")
        return [answer for answer in found.answers if max(answer, default=0) < found.width]

    def _leave(self, reason: str) -> list[list[int]]:
        self.note = f"`{self._path}` {reason}"
        self._usable = False
        return []

    def _save(self) -> None:
        from filelock import FileLock

        try:
            private.make_folder(self._path.parent)
            with FileLock(self._path.with_name(f".{self._path.name}.lock"), timeout=PATIENCE):
                known = [answer for answer in self._load() if answer not in self._fresh]
                if self._usable:
                    self._write([*known, *self._fresh])
        except TimeoutError:
            self.note = f"`{self._path}` is locked by another process"
        except (OSError, StorageError) as error:
            self.note = f"`{self._path}` cannot be written: {error.args[-1]}"

    def _write(self, answers: list[list[int]]) -> None:
        latest: list[list[int]] = []
        room = self._most
        while answers and room > 0:
            latest.insert(0, answers.pop()[-room:])
            room -= len(latest[0])
        assert self.width is not None
        found = Answers("localspec answers 1", self._vocabulary, self.width, latest)
        storage.write_atomically(self._path, msgspec.json.encode(found).decode(), mode=private.FILE)
        self._fresh = []
