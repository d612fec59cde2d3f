"""The one place where engine, drafter, lookahead, verifier and sampler are put together."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

from localspec import plugins
from localspec.core.cursor import Cursor
from localspec.core.decode import decode
from localspec.core.sampler import Sampler, Sampling
from localspec.core.settle import Settler
from localspec.core.tally import Tally
from localspec.core.tokenizer import TextStream
from localspec.errors import BadValue, ContextFull, EmptyPrompt, UnknownModel, UnknownName
from localspec.formats import vocabulary
from localspec.library import Library, Model, Progress
from localspec.plugins import Spec

if TYPE_CHECKING:
    from localspec.core.contracts import Engine, Round, Tokens

AUTO, OFF = "auto", "off"


@dataclass(frozen=True, slots=True)
class Choice:
    """Which parts to use, as texts like `ngram:longest=4`. Device and threads are the engine's."""

    engine: str = "openvino"
    draft: str = AUTO
    lookahead: str = "measured"
    verifier: str = "exact"
    device: str | None = None
    threads: int | None = None

    def check(self) -> None:
        """Raise UnknownName or BadValue for a wrong part or option, before anything is loaded."""
        engine_spec(self)
        plugins.parse("lookaheads", self.lookahead)
        plugins.parse("verifiers", self.verifier)
        if self.draft.partition(":")[0] in plugins.names("drafters"):
            plugins.parse("drafters", self.draft)


@dataclass(slots=True)
class Answer:
    """One answer as it grows: its text, its rounds' sums, its times in seconds.

    `prompt_seconds` is the time to read the prompt up to its last token, `seconds` all of the time.
    """

    prompt_tokens: int
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str = "interrupted"
    prompt_seconds: float = 0.0
    seconds: float = 0.0
    tally: Tally = field(default_factory=Tally)
    reason: str | None = None
    full: bool = False

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second after the prompt was read."""
        spent = self.seconds - self.prompt_seconds
        return len(self.token_ids) / spent if spent > 0 else 0.0


class Runtime:
    """A model that answers, with its draft. One text at a time; the cache is kept from text to text."""

    def __init__(self, model: Model, choice: Choice, library: Library, progress: Progress) -> None:
        self.model = model
        self.engine_spec = engine_spec(choice)
        self.lookahead_spec = plugins.parse("lookaheads", choice.lookahead)
        self.verifier_spec = plugins.parse("verifiers", choice.verifier)
        draft, draft_model = find_draft(choice.draft, model, library, progress)
        self.draft_spec = draft
        self._off = "it was asked for" if choice.draft == OFF else None
        if draft_model is not None and not same_tokenizer(model, draft_model):
            vocabulary.check_same(model.tokenizer(), draft_model.tokenizer(), model.name, draft_model.name)
        guessing = self._draft_engine()
        with ThreadPoolExecutor(2) as pool:  # each of the three keeps one core busy
            tokenizer = pool.submit(model.tokenizer)
            engine = pool.submit(guessing.make, draft_model.folder) if draft_model else None
            self.engine: Engine = self.engine_spec.make(model.folder)
            self.tokenizer = tokenizer.result()
        self.target = Cursor(self.engine.session())
        self.lookahead = self.lookahead_spec.make()
        self.verifier = self.verifier_spec.make()
        needed = (engine.result(), self.engine.vocab) if engine else ()
        self.drafter = draft.make(self.target, *needed)

    @property
    def device(self) -> str:
        """The device that the target runs on."""
        setting = self.engine_spec.part.settings.get("device")
        return str(self.engine_spec.options.get("device", setting.default if setting else "CPU"))

    def encode(self, text: str, *, raw: bool) -> list[int]:
        """Return the tokens of a text: `raw` ones begin as the model's texts do, rendered ones are whole."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return [*self.model.first_tokens(), *ids] if raw else ids

    def answer(
        self,
        prompt: Tokens,
        *,
        sampling: Sampling,
        seed: int | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> tuple[Answer, Generator[Round, None, None]]:
        """Return an empty answer to `prompt` and the rounds that fill it as they are drawn.

        Raises EmptyPrompt, and ContextFull for a prompt that leaves no room for an answer.
        """
        if "" in stop:
            raise BadValue("`stop` is empty", "Give the text to stop at, or leave it out")
        prompt = list(prompt)
        if not prompt:
            raise EmptyPrompt
        if len(prompt) >= self.engine.context:
            raise ContextFull(len(prompt), self.engine.context)
        left = self.engine.context - len(prompt)
        room = left if max_tokens is None else min(max_tokens, left)
        answer = Answer(prompt_tokens=len(prompt))
        settler = Settler(
            TextStream(self.tokenizer), stop_tokens=self.model.stop_tokens(), stop=stop, room=room
        )
        sampler = Sampler(
            sampling,
            seed=int.from_bytes(os.urandom(7)) if seed is None else seed,
            answer_from=len(prompt),
            coupled=self.verifier.coupled,
        )
        return answer, self._rounds(answer, prompt, sampler, settler, full=room == left)

    def _rounds(
        self, answer: Answer, prompt: list[int], sampler: Sampler, settler: Settler, full: bool
    ) -> Generator[Round, None, None]:
        started = perf_counter()
        try:
            self.target.read(prompt[:-1], rows=0)
            answer.prompt_seconds = perf_counter() - started
            for last in decode(
                prompt, self.target, self.drafter, self.lookahead, self.verifier, sampler, settler
            ):
                answer.tally.add(last)
                answer.token_ids += last.tokens
                answer.text += last.text
                answer.finish_reason = last.finish or answer.finish_reason
                answer.seconds = perf_counter() - started
                yield last
        finally:
            answer.full = full and answer.finish_reason == "length"
            answer.reason = self._why_off(answer)
            answer.seconds = perf_counter() - started

    def _why_off(self, answer: Answer) -> str | None:
        """Say why nothing was guessed, or None when something was."""
        if answer.tally.drafted:
            return None
        nothing = f"`{self.draft_spec.name}` found nothing to guess"
        return self._off or self.lookahead.reason or nothing

    def _draft_engine(self) -> Spec:
        """Return the target's engine with the device and threads that the draft asks for."""
        spec, asked = self.engine_spec, self.draft_spec.options
        return with_options(spec, device=asked.get("device") or None, threads=asked.get("threads") or None)


def engine_spec(choice: Choice) -> Spec:
    """Return the engine with its device and threads; raises BadValue for one that takes neither."""
    return with_options(plugins.parse("engines", choice.engine), device=choice.device, threads=choice.threads)


def with_options(spec: Spec, **asked: Any) -> Spec:
    """Return `spec` with the options that are not None; raises BadValue where the part has no such option."""
    options = dict(spec.options)
    for name, value in asked.items():
        if value is None:
            continue
        if name not in spec.part.settings:
            raise BadValue(f"`{spec.name}` has no option called `{name}`", f"Leave `{name}` out")
        options[name] = spec.part.settings[name].parse(str(value), spec.name)
    return Spec(spec.part, options)


def same_tokenizer(one: Model, other: Model) -> bool:
    """Tell whether two models have the very same tokenizer file, which saves comparing the vocabularies."""
    digests = [model.manifest.digests.get("tokenizer.json") for model in (one, other)]
    return digests[0] is not None and digests[0] == digests[1]


def find_draft(text: str, target: Model, library: Library, progress: Progress) -> tuple[Spec, Model | None]:
    """Return the drafter that `text` means, and the draft model if it has one.

    `auto` is the catalogue's pair when it is on disk, else what the text itself repeats. A text that names no
    part is a model's name.
    """
    if text == OFF:
        return plugins.parse("drafters", "none"), None
    if text == AUTO:
        pair = library.find(target.draft) if target.draft else None
        return (_model_draft(pair.name), pair) if pair else (plugins.parse("drafters", "ngram"), None)
    name = text.partition(":")[0]
    if name in plugins.names("drafters"):
        spec = plugins.parse("drafters", text)
        return spec, library.resolve(spec.options["name"], progress) if "name" in spec.options else None
    try:
        found = library.resolve(text, progress)
    except UnknownModel as error:
        near = [*plugins.names("drafters"), *(model.name for model in library.all())]
        raise UnknownName(f"There is no drafter or model called `{text}`", text, near) from error
    return _model_draft(found.name), found


def _model_draft(name: str) -> Spec:
    return Spec(plugins.part("drafters", "model"), {"name": name})
