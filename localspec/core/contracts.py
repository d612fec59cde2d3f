"""The contracts of localspec: what engines, drafters, draft-length policies and verifiers promise.

Read this first. The loop in `decode.py` knows these classes and nothing else:

    draft    = guesses of the drafter, as long as the draft-length policy wants one more
    logits   = the target's logits after the text and after each guess, from one pass
    verdict  = the number of accepted guesses, and the target's own token after them
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.core.blocks.types import Block, BlockPass
from localspec.core.stats import Emitted
from localspec.core.types import Branch, Candidate, Company, Guess, Logits, Picture, Step, Tokens, Verdict

if TYPE_CHECKING:
    from localspec.core.sampler import Sampler


class Session(ABC):
    """One text in one model's KV cache.

    `vocabulary` is a fingerprint of the tokenizer, empty if unknown: kept answers of one tokenizer are
    useless to another. `chunk` is the number of tokens per prefill pass that suits the engine best.
    `company` are the other texts in the last pass.
    """

    vocabulary: str = ""
    chunk: int = 256
    company: Company = Company()

    @abstractmethod
    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return the logits [rows, vocab] of the last `rows` of them.

        `rows` may be 0. The result may be a view of the engine's own memory, valid until the next call.
        Raises ContextFull if the text would outgrow the engine's context; the session is then unchanged.
        """

    @abstractmethod
    def rewind(self, length: int) -> int:
        """Keep at most the first `length` tokens and return the number that was really kept."""


class EarlyExit(Session):
    """A session whose first layers predict tokens by themselves; the other layers continue from there.

    An optional extra that a drafter asks for by type. The text is the same with and without it.
    """

    @abstractmethod
    def early(self, tokens: Tokens, rows: int) -> Logits:
        """Return the first layers' logits [rows, vocab] of the last `rows` of `tokens`.

        `tokens` follow the text, which does not grow. The first layers read each token once: neither the next
        call nor `forward` reads the same tokens through them again. The result may be a view, valid until the
        next call. Raises ContextFull.
        """


class ReducibleSession(Session):
    """A session whose model also runs without some sub-blocks. An optional extra, asked for by type."""

    @abstractmethod
    def reduced(self, skipped: str) -> Session:
        """Return a new, empty session of the same model without the sub-blocks `skipped`, such as `a4-6+m5`.

        It shares the weights and has a KV cache of its own. Raises BadValue for sub-blocks that the model
        cannot skip (drafting/skip_mask.py), UnsupportedModel for a family that runs only whole.
        """


class HiddenStates(Session):
    """A session that exposes its last hidden states. An optional extra, asked for by type."""

    @abstractmethod
    def hidden(self) -> Logits:
        """Return the last hidden states [tokens, width] of the text, a view valid until the next call."""


class LayerStates(Session):
    """A session that exposes the hidden states after some of its layers. An optional extra, asked by type."""

    @abstractmethod
    def states(self) -> Logits:
        """Return the hidden states [tokens, layers * width] of the text, a view valid until the next call."""


class HeadSession(Session):
    """A text that a head reads: each token with the state of its target before it, or with its own.

    `tokens` [n], ascending, are those of the target that its logits [rows, n] are about. An optional extra,
    asked for by type.
    """

    tokens: NDArray[np.int64]

    @abstractmethod
    def fuse(self, states: Logits) -> Logits:
        """Return what stands for the target's `states` [tokens, layers * width], [tokens, width]."""

    @abstractmethod
    def lead(self, states: Logits) -> None:
        """Let `states` [tokens, width] be those with which the next call of `forward` reads its tokens."""

    @abstractmethod
    def own(self) -> Logits:
        """Return the head's own states [rows, width] of the last pass, a view valid until the next one."""


class HintedSession(Session):
    """A session that reads hints, which stand for tokens that are not known yet (K-Forcing, 2606.10820).

    A pass then gives `k` tokens, its own and those of k - 1 hints. An optional extra, asked for by type.
    """

    k: int

    @abstractmethod
    def hint(self, noise: Callable[[int], float], temperature: float, count: int = 0) -> None:
        """Let the next pass that has rows read `count` hints after each of them, k - 1 if 0.

        A hint stands for the token at a position of the text, drawn at a `temperature` by inverse CDF at the
        quantile `noise` of its position; at temperature 0 it is the likeliest one.
        """

    @abstractmethod
    def hinted(self) -> Logits:
        """Return the logits [rows, hints, vocab] after the hints of the last pass that had rows.

        They may be none. The first ones are about the token after the next. A view until the next pass.
        """


class PairSession(Session):
    """A session that reads its text in pairs of tokens, a pass over half as many (PIPO, 2605.27255).

    The row after a pair's first token is that of a small head, without a pass of the model. Where the head is
    less sure than `least`, and the row is asked for at the end of the text, a pad ends the pair and the model
    says what follows. So with 0 the rows depend on the text alone. An optional extra, asked for by type.
    """

    least: float = 0.0

    @abstractmethod
    def confidence(self) -> float | None:
        """Return how sure the head is of the last row, as a probability; None for a row of the model."""


class TreeSession(Session):
    """A session that reads up to `branches` beside its text. An optional extra, asked for by type."""

    branches: int = 64

    @abstractmethod
    def forward_tree(self, tokens: Tokens, rows: int, branches: Sequence[Branch]) -> Logits:
        """Append `tokens` and read `branches` in the same pass; return logits [rows + branches, vocab].

        The text grows by `tokens` alone, whose rows come first and equal those of `forward`, to the bit where
        its own do. The rows of branches may be rounded otherwise. Raises ContextFull as if all were appended.
        """


class SpeechSession(Session):
    """A session whose text says what was heard. An optional extra, asked for by type.

    One that has heard nothing yet may hold any text, whose logits mean nothing.
    """

    @abstractmethod
    def encode(self, features: Logits) -> Logits:
        """Return the encoder's hidden states [frames, width] of the features [mels, 2 * frames]."""

    @abstractmethod
    def hear(self, states: Logits) -> None:
        """Empty the text; what follows is about the encoder's hidden `states` [frames, width]."""

    @abstractmethod
    def beside(self, texts: int) -> SharedPasses:
        """Return common passes of the session's text and of up to so many others about what was heard.

        The logits of the others may be rounded otherwise than they would be in passes of their own.
        """

    @abstractmethod
    def listened(self, tokens: Tokens, heads: Sequence[tuple[int, int]]) -> Logits:
        """Return where each token looked, [heads, tokens, frames]: cross-attention of (layer, head) pairs.

        `tokens` are a whole text about what was heard; the session's own text stays as it is.
        """


class PictureSession(Session):
    """A session whose text has pictures among its tokens. An optional extra, asked for by type.

    A picture takes the place of as many tokens `picture_token` as `tokens_of` says.
    """

    picture_token: int

    @abstractmethod
    def tokens_of(self, picture: Picture) -> int:
        """Return how many tokens stand for a picture; raises PromptError for one that cannot be seen."""

    @abstractmethod
    def see(self, pictures: Sequence[Picture], prompt: Tokens) -> int:
        """Let the picture tokens of the text stand for `pictures`, one after the other.

        `prompt` is the text that is going to be answered: its last token may decide which parts of the
        pictures are read. Returns the number of tokens kept: those before the first picture that is another
        one than before.
        """


class BlockSession(Session):
    """A session of a block-diffusion model, which fills in masks. An optional extra, asked for by type.

    `mask` is the token that stands for an unknown one, `block` the number of tokens that are filled in at a
    time, `context` the most tokens of a text. In a `causal` model blocks begin at multiples of `block`, and
    no token sees a later block; in others all tokens see one another, so a block may begin anywhere. A
    `shifted` model predicts a token at the place before it, as those do that were autoregressive ones.

    The rows of `forward` are about the first of a block of masks after each token, or after the part of a
    block that the text ends in.
    """

    mask: int
    block: int
    context: int
    causal: bool = True
    shifted: bool = False

    @abstractmethod
    def denoise(self, block: Block, *, attention: bool = False) -> BlockPass:
        """Return the pass over tokens that follow the text, which does not grow.

        The text of a causal model ends where a block does. The result may be a view, valid until the next
        call. Raises ContextFull.
        """

    @abstractmethod
    def embeddings(self, tokens: Tokens) -> Logits:
        """Return the embeddings [n, width] of tokens."""


class ExportableSession(Session):
    """A session whose KV cache can be exported to another session of the same model and engine.

    An optional extra, asked for by type. The cache moves in pieces of `block_size` tokens or multiples.
    """

    @property
    @abstractmethod
    def block_size(self) -> int:
        """Tokens of the smallest piece."""

    @abstractmethod
    def export_kv(self, first: int, last: int) -> bytes:
        """Return the KV cache of the tokens [first, last), both multiples of the block size."""

    @abstractmethod
    def import_kv(self, piece: bytes, count: int) -> None:
        """Append `count` tokens by their KV cache `piece`, at the position they were exported from.

        Raises ContextFull, and ValueError for bytes that are no such piece; the session is then unchanged.
        """


class Read(NamedTuple):
    """The tokens that a session appends in a pass, how many of the last get logits, and branches beside."""

    session: Session
    tokens: Tokens
    rows: int
    branches: Sequence[Branch] = ()


class SharedPasses(ABC):
    """Sessions of one engine whose texts are read in common passes. None of it may run in two threads."""

    @abstractmethod
    def session(self) -> Session:
        """Return a new, empty session, whose own `forward` is a pass of its own."""

    @abstractmethod
    def forward(self, reads: Sequence[Read]) -> list[Logits]:
        """Append the tokens of each read to its session, in one pass; return the logits of each.

        Only a TreeSession's read has branches. The result may be views, valid until the next call. Raises
        ContextFull like `Session.forward`; all sessions are then unchanged.
        """


class Engine(ABC):
    """A model on a device.

    An engine is made as `Engine(model, cache, **options)`. `model` is the path of the model in one of the
    `forms` that the engine reads, best first: "openvino" and "safetensors" are folders, "gguf" is a file.
    `cache` is a folder in which the engine may keep compiled models between runs, None to keep nothing.
    `vocab` is the width of the logits, `context` the maximum number of tokens of one text, `device` what the
    model really runs on, as the engine's library names it.
    """

    forms: ClassVar[tuple[str, ...]] = ("openvino",)

    vocab: int
    context: int
    device: str = "CPU"

    @classmethod
    def reads(cls, **options: Any) -> tuple[str, ...]:
        """Return the forms that an engine with these options reads, best first."""
        return cls.forms

    @classmethod
    def weighs(cls, path: Path, **options: Any) -> int:
        """Estimate the bytes of memory that the weights take, without loading them."""
        files = [file for file in path.iterdir() if file.is_file()] if path.is_dir() else [path]
        return sum(file.stat().st_size for file in files)

    @classmethod
    def warning(cls, **options: Any) -> str | None:
        """Return what options cost that a user does not expect, in words, None if nothing."""
        return None

    @abstractmethod
    def session(self) -> Session:
        """Return a new, empty session. Sessions of one engine may run in different threads."""

    def shared_passes(self, texts: int) -> SharedPasses | None:
        """Return sessions for up to `texts` texts with common passes, None where passes read one text."""
        return None


class DraftModel(NamedTuple):
    """The model that a drafter runs: its engine, and how its tokens relate to the target's.

    `vocab` is the width of the target's logits, which may be padded differently from the draft's.
    `translation` maps tokens between two vocabularies (formats/tokenizer/token_bytes.py), None for a draft
    with the target's own. `head` tells that the sessions of the engine are HeadSessions.
    """

    engine: Engine
    vocab: int | None = None
    translation: Any = None
    head: bool = False


class Drafter(ABC):
    """A source of guesses. It does not decide when to stop: the draft-length policy does.

    A drafter is made as `Drafter(target, **options)` with the target's cursor; one with an option `name` runs
    the model of that name and is made as `Drafter(target, draft_model, **options)`, unless it names hints,
    which the target's engine reads. One with an option `middle` that names a model gets that as a third
    argument. `translates` tells whether it is given a translation: never, always, or only for a draft model
    with another vocabulary. `kinds` are the kinds of model that it runs: models of text, heads, which read
    the target's states, and hints.

    For each answer the loop calls `begin` once, then `propose` and `observe` in turns, and `end` once, also
    after an interrupt or an error.
    """

    translates: ClassVar[Literal["never", "if needed", "always"]] = "never"
    kinds: ClassVar[tuple[str, ...]] = ("text",)

    @classmethod
    def needs(cls, **options: Any) -> dict[str, Any]:
        """Return the options that the target's engine must have for a drafter with these `options`.

        None stands for any value. Raises BadValue for options that do not fit together.
        """
        return {}

    @property
    def note(self) -> str | None:
        """A message for the user, such as why a file cannot be used, or None."""
        return None

    def begin(self, prompt: Tokens) -> None:  # noqa: B027 - most drafters do not need it
        """Start an answer to `prompt`."""

    @abstractmethod
    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Candidate]:
        """Yield guesses for what follows `tokens`, one at a time, as long as the caller asks for more.

        Cheap guesses are yielded as they are, expensive ones as a LazyGuess. Advancing without calling
        `draw()` declines a lazy guess. Where the target reads branches, guesses of branches may come between,
        each after the guess that it follows; one that is declined, or whose parent was, is left out.
        """

    def observe(  # noqa: B027 - most drafters do not need it
        self, tokens: Tokens, logits: Logits, verdict: Verdict
    ) -> None:
        """Learn from a verification: `logits` [n, vocab] are the target's after each of the last n tokens.

        Called once a step. `tokens` are the text and the whole draft, accepted or not. The logits are valid
        until the target's next pass: copy what must outlive it.
        """

    def observe_branches(  # noqa: B027 - most drafters do not need it
        self, tokens: Tokens, branches: Sequence[Guess], logits: Logits
    ) -> None:
        """Learn from branches of a draft after `tokens`: `logits` [branches, vocab] follow each.

        Valid like those of `observe`, after which it is called.
        """

    def end(self) -> None:  # noqa: B027 - most drafters do not need it
        """End the answer."""


class ExpectingDrafter(Drafter):
    """A drafter that copies from a text which the next answer is expected to be.

    An optional extra, asked for by type.
    """

    @abstractmethod
    def expect(self, prompt: Tokens, answer: Tokens) -> None:
        """Take in the expected `answer` to `prompt`, before the answer begins.

        Afterwards it is an earlier text like any other.
        """


class SuccessorDrafter(Drafter):
    """A drafter that knows several tokens that may follow a text. An optional extra, asked for by type."""

    @abstractmethod
    def successors(self, tokens: Tokens) -> Sequence[Guess]:
        """Return the likeliest tokens after `tokens`, best first; their confidences are probabilities."""


class CopyWalk(Protocol):
    """A position in the texts that a CopyingDrafter has seen."""

    def go(self, token: int, *, copied: bool = False) -> None:
        """Advance by `token`; `copied` tells whether it is the guess made at this position."""

    def fork(self) -> CopyWalk:
        """Return another walk from the same position."""


class CopyingDrafter(ExpectingDrafter):
    """A drafter that copies from earlier texts, and lets another drafter mix its guesses between the copies.

    An optional extra, asked for by type.
    """

    @abstractmethod
    def walk(self, tokens: Tokens) -> CopyWalk:
        """Take in `tokens` and return the position after them."""

    @abstractmethod
    def guess(self, walk: CopyWalk) -> Guess | None:
        """Return the most likely token at a position, None without a long enough match."""


class TieredDrafter(Drafter):
    """A drafter whose guesses a tier below the target checks. An optional extra, asked for by type."""

    @abstractmethod
    def tier(self, position: int, token: int) -> str:
        """Return the tier that stands for `token` at a position of this step's text, empty if none does."""


class DraftLengthPolicy(ABC):
    """Decides how many tokens to draft.

    For each answer the loop calls `begin` once, then `wants_more` and `learn` in turns, and `end` once, also
    after an interrupt or an error.
    """

    def begin(self, prompt: Tokens) -> None:  # noqa: B027 - most policies do not need it
        """Start an answer to `prompt`."""

    @abstractmethod
    def wants_more(self, draft: Sequence[Guess], candidate: Candidate) -> bool:
        """Return whether `candidate` is worth its cost after `draft`, whose branches are among its guesses.

        A pure question: asking it changes no later answer.
        """

    def learn(self, last: Step) -> None:  # noqa: B027 - learning is optional
        """Learn from the last step: what it cost and what was accepted."""

    def end(self) -> None:  # noqa: B027 - most policies do not need it
        """End the answer."""

    @property
    def reason(self) -> str | None:
        """Why the policy does not draft at present, in a few words; None while it drafts."""
        return None

    @property
    def gains(self) -> dict[str, float]:
        """The expected gain of a step's first guess in this answer by source, in passes over one token."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return what the policy has learned as plain values, to be kept for the same pair of models."""
        return {}

    def restore(self, values: Mapping[str, Any]) -> None:  # noqa: B027 - most learn nothing
        """Restore what `state` returned in an earlier run; malformed values are ignored."""


class Verifier(ABC):
    """Decides how many guesses are accepted.

    `lossless` tells whether the text keeps the target's own distribution. `coupled` tells whether a sampling
    drafter should share the target's randomness at each position (which makes them agree) or draw afresh (for
    rejection sampling). With `quantiles` sampled tokens are drawn by inverse CDF. `drafter` is the only
    drafter it works with, empty for any; that drafter gets the verifier's options.
    """

    lossless: ClassVar[bool] = True
    coupled: ClassVar[bool] = True
    drafter: ClassVar[str] = ""
    quantiles: bool = False

    @abstractmethod
    def verify(self, tokens: Tokens, draft: Sequence[Guess], logits: Logits, sampler: Sampler) -> Verdict:
        """Return the verdict on `draft` after `tokens`, from `logits` [len(draft) + 1, vocab]."""


class LossyVerifier(Verifier):
    """A verifier that accepts tokens which the target may not have chosen. An optional extra."""

    lossless: ClassVar[bool] = False

    @abstractmethod
    def follow(self, drafter: Drafter) -> None:
        """Verify the guesses of `drafter` from now on."""

    @property
    @abstractmethod
    def emitted(self) -> tuple[Emitted, ...]:
        """The tier behind each token of the last verdict."""


class Decoding(ABC):
    """A decoding method whose text differs from plain decoding, such as contrastive search.

    A decoding is made as `Decoding(target, **options)` with the target's cursor. `title` is its name in
    messages. It runs without a draft.
    """

    title: ClassVar[str]

    @classmethod
    def needs(cls, **options: Any) -> dict[str, Any]:
        """Return the options that the target's engine must have for a decoding with these `options`."""
        return {}

    @abstractmethod
    def choose(self, tokens: Tokens) -> int:
        """Return the token after `tokens`; raises what the target's engine raises."""
