"""The contract of a step of a build, and of the context that it runs in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from localspec.core.types import Tokens


class Artifact(NamedTuple):
    """The model between two steps of a build: the folder of its files, and the facts for its card."""

    folder: Path
    facts: dict[str, Any]


class TargetText(NamedTuple):
    """Tokens that the target wrote: its greedy `answer` to a `prompt`."""

    prompt: list[int]
    answer: list[int]


class BuildContext(Protocol):
    """The services of a build to its steps."""

    def say(self, line: str) -> None:
        """Show a finding to the user."""

    def step(self, title: str, total: int | None = None, unit: str = "") -> AbstractContextManager[None]:
        """Return a part of the work, which lasts as long as its `with` block.

        `unit` is the singular of what is counted, such as "text", and `total` their number, if it is known.
        """

    def advance(self, count: int = 1) -> None:
        """Report that `count` more of the innermost part are done."""

    def write_target_texts(self) -> None:
        """Load the target and let it write the texts of `target_texts`, unless they are written.

        A step that takes much memory calls this before it does.
        """

    def target_texts(self) -> Sequence[TargetText]:
        """Return texts of the target on which drafts are evaluated, written first if they are not yet."""

    def target_pass_seconds(self) -> Sequence[float]:
        """Return the seconds of the target's passes over 1, 2, ... tokens."""

    def weights(self, of: str) -> Path:
        """Return the GGUF file or the safetensors folder of the `target`, or of the `source` that is pruned.

        Raises UnsupportedModel for a model that has neither.
        """

    def chat_wrappers(self) -> Sequence[tuple[Tokens, Tokens]]:
        """Return the target's tokens before and after a user's first message, for several kinds of user."""

    def training_prompts(self) -> Sequence[Tokens]:
        """Return the user's prompts for healing, none if the target is to invent them."""

    def stop_tokens(self) -> Sequence[int]:
        """Return the tokens that end an answer of the target."""

    def measured_once(self, what: str, measure: Callable[[], Any]) -> Any:
        """Return the JSON value of `measure`, which runs once per plan and machine.

        No two measurements are equal; with kept ones a repeated build makes the same choices.
        """

    @property
    def work_folder(self) -> Path:
        """A folder that is still there when a killed build is resumed."""


class BuildStep(ABC):
    """One step of a build, made as `Step(context, **options)`."""

    def check(self, layers: int) -> None:  # noqa: B027 - most steps accept every model
        """Raise BadValue if the options do not fit a source of that many layers; called before the build."""

    @abstractmethod
    def run(self, source: Artifact, into: Path) -> Artifact:
        """Write the changed files of `source` into the empty folder `into`, and return the new artifact.

        Raises a LocalspecError for a bad source or bad options; `into` is then deleted.
        """
