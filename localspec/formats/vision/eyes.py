"""Eyes: how many tokens a picture becomes, and the embeddings of those that were looked at lately."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from localspec.core.types import Picture
from localspec.errors import UnsupportedModel
from localspec.formats.vision import pixels
from localspec.formats.vision.config import SeeingShape

LOOKED_AT = 8  # pictures whose embeddings are kept: a conversation reads them again and again
Patches = tuple[int, int]  # rows and columns of a picture
See = Callable[[pixels.Array, Patches | None], Any]


class Seen(NamedTuple):
    """A picture as embeddings `states` [tokens, width], in `rows` and `columns` of the picture."""

    digest: str
    states: Any
    rows: int
    columns: int


class Eyes:
    """Looks at pictures; where its tower runs, and what kind of array comes of it, an engine decides."""

    def __init__(self, path: Path, shape: SeeingShape, see: See) -> None:
        """Read how pictures are prepared, from the folder `path`.

        `see` returns the embeddings [tokens, width] of a LLaVA's square [3, side, side], or of the patches
        [patches, values] of a picture that has so many rows and columns of them. Raises UnsupportedModel for
        a preprocessor that does something else than localspec computes.
        """
        self._path, self._see = path, see
        self._tower = shape.tower
        self.pixels = pixels.read(path, shape.family, self._tower.patch if self._tower else 0)
        self._looked: OrderedDict[str, Seen] = OrderedDict()
        if self._tower and self._tower.side != self.pixels.side:
            raise UnsupportedModel(
                f"The eyes of `{path}` take pictures of {self._tower.side} pixels, and its preprocessor "
                f"makes them of {self.pixels.side}"
            )

    def tokens_of(self, picture: Picture) -> int:
        """Return how many tokens stand for a picture; raises PromptError for one that is too slim."""
        if self._tower:
            return self._tower.tokens
        rows, columns = pixels.grid(picture.size[1], picture.size[0], self.pixels)
        return rows * columns // self.pixels.merge**2

    @property
    def usual(self) -> int:
        """The tokens of a usual picture."""
        return self._tower.tokens if self._tower else max(1, self.pixels.most // self._unit**2)

    @property
    def _unit(self) -> int:
        """The pixels of a token's side."""
        return self.pixels.patch * self.pixels.merge

    def look(self, picture: Picture) -> Seen:
        """Return the embeddings of a picture, from memory if it was looked at lately; raises PromptError."""
        found = self._looked.get(picture.digest)
        if found is None:
            found = self._looked[picture.digest] = self._look(picture)
            if len(self._looked) > LOOKED_AT:
                self._looked.popitem(last=False)
        self._looked.move_to_end(picture.digest)
        return found

    def _look(self, picture: Picture) -> Seen:
        if self._tower:
            states = self._see(pixels.square(picture.pixels, self.pixels), None)
            rows = columns = round(self._tower.tokens**0.5)
        else:
            flat, (rows, columns) = pixels.patches(picture.pixels, self.pixels)
            states = self._see(flat, (rows, columns))
            rows, columns = rows // self.pixels.merge, columns // self.pixels.merge
        if len(states) != self.tokens_of(picture):
            raise UnsupportedModel(
                f"The eyes of `{self._path}` see {len(states)} tokens in a picture, and its numbers say "
                f"{self.tokens_of(picture)}"
            )
        return Seen(picture.digest, states, rows, columns)
