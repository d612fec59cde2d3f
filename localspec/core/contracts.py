"""The seams of localspec: what an engine, a drafter, a lookahead and a verifier promise each other.

Read this first. The loop in `decode.py` knows these classes and nothing else:

    draft    = guesses of the drafter, as long as the lookahead wants one more
    rows     = the target's logits after the text and after each guess, in one pass
    verdict  = how many guesses stand, and the target's own token after them
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from localspec.core.sampler import Sampler

Tokens = Sequence[int]
Row = NDArray[np.float32]  # [vocab]
Rows = NDArray[np.float32]  # [tokens, vocab]


class Distribution(NamedTuple):
    """Probabilities of the tokens that may come next; every other token has probability 0.

    `tokens` [n] ascending, `probs` [n] float64 summing to 1. A support of a few tokens is what top-k and
    top-p leave of a vocabulary of 150,000, so nothing after them touches the rest.
    """

    tokens: NDArray[np.int64]
    probs: NDArray[np.float64]

    def of(self, token: int) -> float:
        """Return the probability of `token`."""
        at = int(np.searchsorted(self.tokens, token))
        found = at < len(self.tokens) and self.tokens[at] == token
        return float(self.probs[at]) if found else 0.0


class Guess(NamedTuple):
    """One drafted token, what it was drawn from, and how sure its drafter is.

    `probs` is None for a point mass: a retrieved token, or a draft model's likeliest one. `source` names the
    drafter where several guess in turn.
    """

    token: int
    probs: Distribution | None = None
    confidence: float = 1.0
    source: str = ""


class Offer(NamedTuple):
    """A guess that costs something, such as a pass of a draft model: `draw` makes it, and None is no guess.

    `behind` are the tokens that must be read for it: one more each time, or all that the draft has missed.
    Who does not want it goes on without: the drafter's next step is then a guess from elsewhere, or none.
    """

    draw: Callable[[], Guess | None]
    source: str = ""
    behind: int = 1


class Verdict(NamedTuple):
    """How many guesses stand, and the target's own token after them."""

    accepted: int
    token: int


@dataclass(frozen=True, slots=True)
class Round:
    """One target pass: what it settled, what it cost.

    `tokens` are the settled ones, cut at the first stop; `text` is what they add to the answer in whole
    characters; `finish` says why the answer ends here, or is None. `draft` are the guesses and `costs`
    the seconds of each; `draft_seconds` is all that drafting took.
    """

    tokens: tuple[int, ...]
    drafted: int
    accepted: int
    draft_seconds: float
    target_seconds: float
    text: str = ""
    finish: str | None = None
    draft: tuple[Guess, ...] = ()
    costs: tuple[float, ...] = ()


class Constraint(ABC):
    """What an answer may be, token by token, such as a grammar.

    Any answer may be asked about, in any order: it is followed from what it shares with the last one.
    """

    @abstractmethod
    def allowed(self, answer: Tokens) -> NDArray[np.bool_] | None:
        """Return which tokens [vocab] may come after `answer`; None where all may, as after its end."""

    @abstractmethod
    def forced(self, answer: Tokens) -> Tokens:
        """Return tokens that spell what must come after `answer`, none where several things may come."""


class Session(ABC):
    """One text in one model's KV cache.

    `vocabulary` is a fingerprint of what the tokens mean, empty where nobody knows: what is kept of one
    vocabulary is of no use to another. A long text is best read `chunk` tokens at a time.
    """

    vocabulary: str = ""
    chunk: int = 256

    @abstractmethod
    def forward(self, tokens: Tokens, rows: int) -> Rows:
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
    def early(self, tokens: Tokens, rows: int) -> Rows:
        """Return logits [rows, vocab] that the first layers give after each of the last `rows` of `tokens`.

        `tokens` follow the text, which does not grow. Those that were read here before are not read again,
        nor does `forward` read them through these layers when they are the ones that it appends. The result
        may be a view: it holds until the next call. Raises ContextFull.
        """


class HiddenStates(Session):
    """A session that shows what its head makes logits of: an extra that is asked for by type."""

    @abstractmethod
    def hidden(self) -> Rows:
        """Return the last hidden states [tokens, width] of the text, a view until the next call."""


class Portable(Session):
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
    """A source of guesses. Knows nothing about when to stop: the lookahead decides after each guess.

    A drafter is made as `Drafter(target, **options)`, with the target's cursor. `translates` tells whether
    it is given a translation for a model with another vocabulary: never, always, or if that needs one.
    """

    translates: ClassVar[Literal["never", "if needed", "always"]] = "never"

    @classmethod
    def needs(cls, **options: Any) -> dict[str, Any]:
        """Return the options that the target's engine must have for a drafter with these `options`."""
        return {}

    @abstractmethod
    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Guess | Offer]:
        """Yield guesses for what follows `tokens`, one at a time, as long as somebody asks.

        A guess that costs next to nothing is made at once; one that is expensive is offered. Whoever asks on
        without having drawn it has refused it.
        """

    def observe(  # noqa: B027 - most drafters have no use for it
        self, tokens: Tokens, rows: Rows, verdict: Verdict
    ) -> None:
        """Take in the target's logits `rows` [n, vocab] after the last n of `tokens` each, and the verdict.

        Called once a round, when the draft has been checked: `tokens` are the text and all of the draft,
        whether it stood or not. The rows hold until the target's next read: copy what is to be kept.
        """


class Lookahead(ABC):
    """Decides how far to guess."""

    @abstractmethod
    def wants_more(self, draft: Sequence[Guess], step: Guess | Offer) -> bool:
        """Tell whether `step`, a guess that was made or is offered, is worth its cost after `draft`."""

    def learn(self, last: Round) -> None:  # noqa: B027 - learning is optional
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


class Artifact(NamedTuple):
    """A model on its way through a build: the folder of its files, and what its card will say."""

    folder: Path
    facts: dict[str, Any]


class Text(NamedTuple):
    """Tokens that the target wrote: its greedy `answer` to a `prompt`."""

    prompt: list[int]
    answer: list[int]


class Site(Protocol):
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


class Step(ABC):
    """One step of a build, made as `Step(site, **options)`."""

    def check(self, layers: int) -> None:  # noqa: B027 - most fit every model
        """Raise BadValue where the options do not fit a source of so many layers, before anything is done."""

    @abstractmethod
    def run(self, source: Artifact, into: Path) -> Artifact:
        """Make the files of `source` anew in the empty folder `into`, and return what that is now.

        Raises what is wrong with the source or the options; `into` is then thrown away.
        """


class Verifier(ABC):
    """Decides how many guesses stand.

    `lossless` tells whether the text keeps the target's own distribution. `coupled` tells whether a drafter
    that samples should share the target's randomness at each position (agreement) or draw afresh (rejection).
    """

    lossless: ClassVar[bool] = True
    coupled: ClassVar[bool] = True

    @abstractmethod
    def verify(self, tokens: Tokens, draft: Sequence[Guess], rows: Rows, sampler: Sampler) -> Verdict:
        """Return the verdict on `draft` after `tokens`, from logits `rows` [len(draft) + 1, vocab]."""


class Call(NamedTuple):
    """A tool that the model asks for."""

    name: str
    arguments: dict[str, Any]


class Reader(Protocol):
    """Splits an answer, as it streams, into text and calls."""

    def push(self, piece: str) -> list[str | Call]:
        """Return what is certain after `piece`: text that is no part of a call, and complete calls."""

    def end(self) -> list[str | Call]:
        """Return what is left when the answer has ended; what was meant as a call and is none is text."""


class Dialect(ABC):
    """How a family of models writes tool calls.

    Tools are the JSON that chat templates know, `{"type": "function", "function": {"name", "parameters"}}`.
    A dialect is chosen when one of its `signs` is in a model's chat template.
    """

    signs: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def grammar(
        self,
        tools: Sequence[Mapping[str, Any]],
        token: Callable[[str], int | None],
        *,
        must: bool,
        inside: bool = False,
    ) -> str:
        """Return, in Lark, what an answer may be: text that is no call, or calls of `tools` that are whole.

        Where it `must`, only calls; `inside` tells that the prompt has begun a thought. `token` gives the id
        of a special token by its text, None where the tokenizer has no such token.
        """

    @abstractmethod
    def reader(self) -> Reader:
        """Return a reader for one answer."""

    def render(
        self,
        template: Callable[..., str],
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
    ) -> str:
        """Return the prompt that `template` makes of a conversation with `tools`."""
        return template(messages, tools=tools)


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
