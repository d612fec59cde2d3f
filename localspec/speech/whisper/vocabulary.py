"""The tokens of a speech model that are no text: languages, tasks, times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.core.types import Tokens
from localspec.errors import BadValue, BrokenModel, nearest, printable
from localspec.formats.files import read_json
from localspec.formats.values import MAX_TOKENS, shown

STEP = 0.02  # seconds between two timestamps
LAST = 1500  # the timestamp of 30 seconds
HINT = "Download the model again"
MULTILINGUAL = "Choose a model of many languages, such as `--model whisper-base`"
TRANSCRIBE, TRANSLATE = "transcribe", "translate"


@dataclass(frozen=True, slots=False)
class SpeechTokens:
    """What a Whisper model's own tokens stand for (Radford et al. 2022, section 2.3).

    `languages` are empty for a model of English alone, whose prompt names no language and no task.
    `suppressed` never come.
    """

    start: int
    end: int
    no_timestamps: int
    languages: Mapping[str, int]
    tasks: Mapping[str, int]
    suppressed: tuple[int, ...]
    alignment_heads: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, folder: Path) -> SpeechTokens:
        """Read a model's generation_config.json; raises BrokenModel for one that lacks them."""
        path = folder / "generation_config.json"
        found = read_json(path)
        try:
            languages = {
                key.strip("<|>"): _token(token) for key, token in (found.get("lang_to_id") or {}).items()
            }
            return cls(
                start=_token(found["decoder_start_token_id"]),
                end=_token(found["eos_token_id"]),
                no_timestamps=_token(found["no_timestamps_token_id"]),
                languages=languages,
                tasks={key: _token(token) for key, token in (found.get("task_to_id") or {}).items()},
                suppressed=tuple(_token(token) for token in found.get("suppress_tokens") or ()),
                alignment_heads=tuple(
                    (_token(at), _token(head)) for at, head in found.get("alignment_heads") or ()
                ),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BrokenModel(f"`{path}` is no speech model's: {error!r}", HINT) from None

    @property
    def multilingual(self) -> bool:
        """Return whether the model knows languages beside English."""
        return bool(self.languages)

    @property
    def first_time(self) -> int:
        """The token of 0.00 seconds; those of later times follow."""
        return self.no_timestamps + 1

    @property
    def no_speech(self) -> int:
        """The token that says that nobody talks."""
        return self.no_timestamps - 1

    @property
    def previous(self) -> int:
        """The token that begins the text before."""
        return self.no_timestamps - 2

    @cached_property
    def never(self) -> NDArray[np.int64]:
        """The tokens that never come: those suppressed, and those that are no text, end or time."""
        special = range(self.end + 1, self.first_time)
        return np.array(sorted({*self.suppressed, *special}), np.int64)

    def prompt(self, language: str | None, task: str, before: Tokens = ()) -> list[int]:
        """Return the tokens before an answer; `before` is the end of the previous text.

        Raises BadValue for what the model cannot do.
        """
        own = [self.start]
        if self.multilingual:
            assert language is not None
            own += [self.languages[self.checked(language)], self.tasks[task]]
        elif language not in (None, "en") or task != TRANSCRIBE:
            raise BadValue("The model transcribes English alone", MULTILINGUAL)
        return [*([self.previous, *before] if before else []), *own]

    def knows(self, language: str | None, task: str) -> bool:
        """Return whether the model knows a language and a task."""
        if not self.multilingual:
            return language in (None, "en") and task == TRANSCRIBE
        return language in self.languages and task in self.tasks

    def same_text(self, other: SpeechTokens) -> bool:
        """Return whether all tokens have the same numbers."""
        return (self.end, self.first_time, self.languages) == (other.end, other.first_time, other.languages)

    def checked(self, language: str) -> str:
        """Return a language's code; raises BadValue for one that the model does not know."""
        if language not in self.languages:
            raise BadValue(
                f"The model does not know the language `{language}`",
                nearest(language, list(self.languages), "localspec transcribe --help"),
            )
        return language

    def seconds(self, token: int) -> float:
        """Return the time of a timestamp."""
        return (token - self.first_time) * STEP

    def is_time(self, token: int) -> bool:
        """Return whether a token is a timestamp."""
        return token >= self.first_time


def _token(value: Any) -> int:
    """Return a token, or the number of a layer or a head; raises ValueError for what cannot be one."""
    if type(value) is not int or not 0 <= value < MAX_TOKENS:
        raise ValueError(f"{printable(shown(value))} is no token")
    return value
