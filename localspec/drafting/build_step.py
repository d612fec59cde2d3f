"""What a step of a build promises, and what it may ask of the build."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from localspec.core.types import Tokens


class Artifact(NamedTuple):
    """A model on its way through a build: the folder of its files, and what its card will say."""

    folder: Path
    facts: dict[str, Any]


class Text(NamedTuple):
    """Tokens that the target wrote: its greedy `answer` to a `prompt`."""

    prompt: list[int]
    answer: list[int]


class BuildContext(Protocol):
    """What a step may ask of the build that it is part of."""

    def say(self, line: str) -> None:
        """Tell the user what was found."""

    def step(self, title: str, total: int | None = None) -> None:
        """Begin a part of the work, of `total` bytes where that is known."""

    def texts(self) -> Sequence[Text]:
        """Return texts that the target wrote, by whose tokens a draft is judged."""

    def passes(self) -> Sequence[float]:
        """Return the seconds of the target's passes over 1, 2, ... tokens."""

    def weights(self, of: str) -> Path:
        """Return the GGUF file or the safetensors folder of the `target`, or of the `source` that is cut.

        Raises UnsupportedModel for a model that has neither.
        """

    def turns(self) -> Sequence[tuple[Tokens, Tokens]]:
        """Return what the target reads before and behind what a user says, for each kind of user."""

    def prompts(self) -> Sequence[Tokens]:
        """Return prompts that the user gave to learn from, none where the target is to invent them."""

    def ends(self) -> Sequence[int]:
        """Return the tokens that end an answer of the target."""

    def once(self, what: str, measure: Callable[[], Any]) -> Any:
        """Return what `measure` finds of `what`, as JSON holds it; measured once for a plan on this machine.

        So a plan that is built again chooses the same, though no two measurements are the same.
        """

    @property
    def kept(self) -> Path:
        """A folder that outlives a build that was killed."""


class BuildStep(ABC):
    """One step of a build, made as `Step(site, **options)`."""

    def check(self, layers: int) -> None:  # noqa: B027 - most fit every model
        """Raise BadValue where the options do not fit a source of so many layers, before anything is done."""

    @abstractmethod
    def run(self, source: Artifact, into: Path) -> Artifact:
        """Make the files of `source` anew in the empty folder `into`, and return what that is now.

        Raises what is wrong with the source or the options; `into` is then thrown away.
        """
