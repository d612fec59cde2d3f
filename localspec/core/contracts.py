"""The seams of localspec: what an engine, a drafter, a draft-length policy and a verifier promise each other.

Read this first. The loop in `decode.py` knows these classes and nothing else:

    draft    = guesses of the drafter, as long as the draft-length policy wants one more
    rows     = the target's logits after the text and after each guess, in one pass
    verdict  = how many guesses stand, and the target's own token after them
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from localspec.core.types import Guess, LazyGuess, Logits, Step, Tokens, Verdict

if TYPE_CHECKING:
    from localspec.core.sampler import Sampler


class Session(ABC):
    """One text in one model's KV cache.

    `vocabulary` is a fingerprint of what the tokens mean, empty where nobody knows: what is kept of one
    vocabulary is of no use to another. A long text is best read `chunk` tokens at a time.
    """

    vocabulary: str = ""
    chunk: int = 256

    @abstractmethod
    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return logits [rows, vocab] after each of the last `rows` of them.

        `rows` may be 0. The result may be a view of the engine's own memory: it holds until the next call.
        Raises ContextFull when the text would outgrow the engine's context; the session is then unchanged.
        """

    @abstractmethod
    def rewind(self, length: int) -> int:
        """Keep at most the first `length` tokens and return how many were really kept."""


class EarlyExit(Session):
    """A session whose first layers can be asked what they expect; the rest then go on from there.

    An extra that a drafter asks for by type. The text is the same with and without it.
    """

    @abstractmethod
    def early(self, tokens: Tokens, rows: int) -> Logits:
        """Return logits [rows, vocab] that the first layers give after each of the last `rows` of `tokens`.

        `tokens` follow the text, which does not grow. Those that were read here before are not read again,
        nor does `forward` read them through these layers when they are the ones that it appends. The result
        may be a view: it holds until the next call. Raises ContextFull.
        """


class HiddenStates(Session):
    """A session that shows what its head makes logits of: an extra that is asked for by type."""

    @abstractmethod
    def hidden(self) -> Logits:
        """Return the last hidden states [tokens, width] of the text, a view until the next call."""


class ExportableSession(Session):
    """A session whose text can be taken to another one of the same model and engine: an extra, by type.

    It goes in pieces of tokens.
    """

    @property
    @abstractmethod
    def grain(self) -> int:
        """Tokens of the smallest piece; every other one is a multiple of it."""

    @abstractmethod
    def saved(self, first: int, last: int) -> bytes:
        """Return what is held of the tokens from `first` on and before `last`, multiples of the grain."""

    @abstractmethod
    def load(self, piece: bytes, count: int) -> None:
        """Append `count` tokens, which `piece` is what `saved` returned of, at the place where they were.

        Raises ContextFull, and ValueError for what is no such piece; the session is then unchanged.
        """


class Engine(ABC):
    """A model on a device. `vocab` is the width of a row, `context` the most tokens of one text.

    An engine is made as `Engine(path, **options)`, where `path` is the model in one of the `forms` that the
    engine reads, best first: "openvino" and "safetensors" are folders, "gguf" is a file. `device` is what it
    really runs on, in the words of its library.
    """

    forms: ClassVar[tuple[str, ...]] = ("openvino",)

    vocab: int
    context: int
    device: str = "CPU"

    @classmethod
    def weighs(cls, path: Path, **options: Any) -> int:
        """Return about how many bytes the weights take in memory, before anything is loaded."""
        files = [file for file in path.iterdir() if file.is_file()] if path.is_dir() else [path]
        return sum(file.stat().st_size for file in files)

    @abstractmethod
    def session(self) -> Session:
        """Return a new, empty session. Sessions of one engine may run in different threads."""


class Drafter(ABC):
    """A source of guesses. Knows nothing about when to stop: the draft-length policy decides.

    A drafter is made as `Drafter(target, **options)`, with the target's cursor. `translates` tells whether
    it is given a translation for a model with another vocabulary: never, always, or if that needs one.
    """

    translates: ClassVar[Literal["never", "if needed", "always"]] = "never"

    @classmethod
    def needs(cls, **options: Any) -> dict[str, Any]:
        """Return the options that the target's engine must have for a drafter with these `options`."""
        return {}

    @abstractmethod
    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Guess | LazyGuess]:
        """Yield guesses for what follows `tokens`, one at a time, as long as somebody asks.

        A guess that costs next to nothing is made at once; one that is expensive is offered. Whoever asks on
        without having drawn it has refused it.
        """

    def observe(  # noqa: B027 - most drafters have no use for it
        self, tokens: Tokens, rows: Logits, verdict: Verdict
    ) -> None:
        """Take in the target's logits `rows` [n, vocab] after the last n of `tokens` each, and the verdict.

        Called once a round, when the draft has been checked: `tokens` are the text and all of the draft,
        whether it stood or not. The rows hold until the target's next read: copy what is to be kept.
        """


class DraftLengthPolicy(ABC):
    """Decides how far to guess."""

    @abstractmethod
    def wants_more(self, draft: Sequence[Guess], step: Guess | LazyGuess) -> bool:
        """Tell whether `step`, a guess that was made or is offered, is worth its cost after `draft`."""

    def learn(self, last: Step) -> None:  # noqa: B027 - learning is optional
        """Take in what the last round settled and cost."""

    @property
    def reason(self) -> str | None:
        """Say in a few words why it does not guess at present, or None when it does."""
        return None

    def state(self) -> dict[str, Any]:
        """Return what it has learned as plain values, for the next time with the same pair."""
        return {}

    def restore(self, values: Mapping[str, Any]) -> None:  # noqa: B027 - most learn nothing
        """Take in what `state` returned, perhaps long ago; what is malformed is ignored."""


class Verifier(ABC):
    """Decides how many guesses stand.

    `lossless` tells whether the text keeps the target's own distribution. `coupled` tells whether a drafter
    that samples should share the target's randomness at each position (agreement) or draw afresh (rejection).
    """

    lossless: ClassVar[bool] = True
    coupled: ClassVar[bool] = True

    @abstractmethod
    def verify(self, tokens: Tokens, draft: Sequence[Guess], rows: Logits, sampler: Sampler) -> Verdict:
        """Return the verdict on `draft` after `tokens`, from logits `rows` [len(draft) + 1, vocab]."""


class Decoding(ABC):
    """A way of writing that is not the model's own: its text is another than that of plain decoding.

    A decoding is made as `Decoding(target, **options)`, with the target's cursor. `title` is what people
    call it. Nothing is guessed beside it.
    """

    title: ClassVar[str]

    @classmethod
    def needs(cls, **options: Any) -> dict[str, Any]:
        """Return the options that the target's engine must have for a decoding with these `options`."""
        return {}

    @abstractmethod
    def choose(self, tokens: Tokens) -> int:
        """Return the token after `tokens`; raises what the target's engine raises."""
