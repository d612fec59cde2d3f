"""The tokens of a text with pictures: which part of which picture each stands for, and where it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.core.types import Picture, Tokens
from localspec.formats.vision.config import SeeingShape
from localspec.formats.vision.eyes import Eyes, Seen

Place = tuple[int, int, int]  # of a token in time, height and width


class PictureText:
    """A text that grows at its end, and is cut there."""

    def __init__(self, eyes: Eyes, shape: SeeingShape) -> None:
        self.eyes, self._sections = eyes, shape.sections
        self._token = shape.token
        self._ids: list[int] = []
        self._places: list[Place] = []
        self.pictures: list[Seen] = []

    def __len__(self) -> int:
        return len(self._ids)

    def see(self, pictures: Sequence[Picture]) -> int:
        """Let picture tokens stand for `pictures`; return the length up to the first that changed."""
        held, self.pictures = self.pictures, [self.eyes.look(picture) for picture in pictures]
        same = 0
        for old, new in zip(held, self.pictures, strict=False):
            if old.digest != new.digest:
                break
            same += len(old.states)
        at = [place for place, token in enumerate(self._ids) if token == self._token]
        return at[same] if same < len(at) else len(self._ids)

    def append(self, tokens: Tokens) -> None:
        """Append tokens."""
        self._places += self._next_places(tokens)
        self._ids += tokens

    def cut(self, length: int) -> None:
        """Keep the first `length` tokens."""
        del self._ids[length:], self._places[length:]

    @property
    def gap(self) -> int:
        """How many positions the next token is before its place among the tokens."""
        return len(self._ids) - (max(self._places[-1]) + 1) if self._places else 0

    def visual(self, tokens: Tokens) -> list[int]:
        """Return which of the next tokens stand for parts of pictures.

        A picture token without a picture, as in a check of rewinds, is a token like others.
        """
        if not self.pictures or self._token not in tokens:
            return []
        left = sum(len(picture.states) for picture in self.pictures) - self._ids.count(self._token)
        return [place for place, token in enumerate(tokens) if token == self._token][: max(left, 0)]

    def states(self, count: int) -> list[Any]:
        """Return the embeddings of the next `count` visual tokens, by picture: [tokens, width] each."""
        begin = self._ids.count(self._token)
        end = begin + count
        found, first = list[Any](), 0
        for picture in self.pictures:
            last = first + len(picture.states)
            if first < end and last > begin:
                found.append(picture.states[max(begin - first, 0) : end - first])
            first = last
        return found

    def positions(self, tokens: Tokens) -> NDArray[np.int64]:
        """Return the positions of the next tokens, [tokens], or with sections one for each rotary pair."""
        places = np.array(self._next_places(tokens), np.int64).reshape(-1, 3)
        return np.repeat(places, self._sections, 1) if self._sections else places[:, 0]

    def _next_places(self, tokens: Tokens) -> list[Place]:
        """Return the positions of the next tokens in time, height and width.

        Without sections all three count tokens. With them a picture has one moment and the rows and columns
        of its tokens, from the position after the text before it; the text goes on after the largest.
        """
        begin = len(self._ids)
        if not self._sections:
            return [(at, at, at) for at in range(begin, begin + len(tokens))]
        number, found = self._ids.count(self._token), list(self._places[-1:])
        ends = np.cumsum([len(picture.states) for picture in self.pictures])
        for token in tokens:
            after = max(found[-1]) + 1 if found else 0
            which = int(np.searchsorted(ends, number, side="right"))
            if token != self._token or which == len(ends):
                found.append((after, after, after))
                continue
            picture = self.pictures[which]
            inside = number - (int(ends[which]) - len(picture.states))
            row, column = divmod(inside, picture.columns)
            start = found[-1][0] if inside else after
            found.append((start, start + row, start + column))
            number += 1
        return found[len(found) - len(tokens) :]
