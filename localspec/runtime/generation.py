"""The one place where engine, drafter, draft-length policy, verifier and sampler are put together."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from localspec import plugins
from localspec.core.cursor import Cursor
from localspec.core.decode import decode, run_decoding
from localspec.core.sampler import Sampler, Sampling
from localspec.core.stats import Stats
from localspec.core.stop import OutputProcessor
from localspec.core.text import TextStream
from localspec.core.types import shared_prefix
from localspec.errors import BadValue, ContextFull, EmptyPrompt, UnsupportedModel
from localspec.library import Library, Progress, compiled_folder
from localspec.output.grammar import Grammar, words
from localspec.runtime.resolution import (
    OFF,
    OFF_PART,
    STANDARD,
    Choice,
    LoadSpec,
    check_memory,
    decoding_spec,
    find_draft,
    find_engine,
    find_tuned,
    serving,
)
from localspec.state import probes
from localspec.state.prompt_cache import FOLDER, Prompts

if TYPE_CHECKING:
    from localspec.core.contracts import Decoding, Drafter, DraftLengthPolicy, Engine
    from localspec.core.types import Step, Tokens

NOTHING = "fixed:tokens=0"  # not even what a grammar forces


@dataclass(slots=True)
class Answer:
    """One answer as it grows: its text, its rounds' sums, its times in seconds.

    `prompt_seconds` is the time to read the prompt up to its last token, `seconds` all of the time. Of the
    prompt `kept_tokens` were not read but taken from disk.
    """

    prompt_tokens: int
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str = "interrupted"
    kept_tokens: int = 0
    prompt_seconds: float = 0.0
    seconds: float = 0.0
    stats: Stats = field(default_factory=Stats)
    reason: str | None = None
    full: bool = False

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second after the prompt was read."""
        spent = self.seconds - self.prompt_seconds
        return len(self.token_ids) / spent if spent > 0 else 0.0


def greedy(
    runtime: Runtime,
    prompt: Tokens,
    drafter: Drafter,
    *,
    guesses: int,
    room: int,
    target: Cursor | None = None,
) -> list[Step]:
    """Return the rounds of a greedy answer of at most `room` tokens, with `guesses` a round of `drafter`.

    The runtime's target, or another one of the same model, has read the prompt but for its last token.
    """
    target = target or runtime.target
    target.read(prompt[:-1], rows=0)
    processor = OutputProcessor(
        TextStream(runtime.tokenizer), stop_tokens=runtime.model.stop_tokens(), stop=(), room=room
    )
    draft_length = plugins.parse("draft_length", f"fixed:tokens={guesses}").make()
    verifier = plugins.parse("verifiers", "exact").make()
    return list(decode(list(prompt), target, drafter, draft_length, verifier, Sampler(Sampling()), processor))


class Runtime:
    """A model that answers, with its draft. One text at a time; the cache is kept from text to text."""

    def __init__(
        self,
        name: str,
        choice: Choice,
        library: Library,
        progress: Progress,
        loaded: Sequence[tuple[LoadSpec, Engine]] = (),
        prompts: int = 0,
    ) -> None:
        """Load the model called `name`, which is fetched when it is missing, and its draft.

        Engines that are `loaded` already are used where they are what is needed. Of what long prompts were
        read to, of all models, `prompts` bytes are kept on disk (prompts.py). Raises what a wrong choice, a
        model that cannot be had or read, a device that is not there and too little memory raise.
        """
        decoding = None if choice.decoding == STANDARD else decoding_spec(choice.decoding)
        choice, self.tuned = find_tuned(name, choice, library, progress)
        self.engine_spec, self.engine_reason, model = find_engine(name, choice, library, progress)
        self.model = model
        self.draft_length_spec = plugins.parse("draft_length", choice.draft_length)
        self.verifier_spec = plugins.parse("verifiers", choice.verifier)
        drafting = find_draft(choice, model, self.engine_spec, library, progress)
        self.draft_spec = draft = drafting.spec
        self.engine_spec = serving(decoding or draft, self.engine_spec)
        self.decoding_spec = decoding
        self._off = "it was asked for" if choice.draft == OFF else None
        if decoding:
            self._off = self._off or f"{decoding.part.made_by.title} writes another text"
        self.making = own = LoadSpec(self.engine_spec, model)
        place = compiled_folder(model.folder)
        self.prompts = Prompts(place / FOLDER / own.key, place.parent, prompts)
        self.draft_making = drafting.making
        needed = list(dict.fromkeys([own, self.draft_making or own]))
        engines = dict(loaded)
        check_memory([making for making in needed if making not in engines])
        with ThreadPoolExecutor(4) as pool:  # each of the four keeps one core busy
            tokenizer = pool.submit(model.tokenizer)
            translated = pool.submit(drafting.translation, model)
            making = {making: pool.submit(making.make) for making in needed if making not in engines}
            engines |= {making: made.result() for making, made in making.items()}
            self.tokenizer, between = tokenizer.result(), translated.result()
        self.engine: Engine = engines[own]
        self.draft_engine = engines[self.draft_making] if self.draft_making else None
        session = self.engine.session()
        session.vocabulary = model.manifest.digests.get("tokenizer.json", "")
        self.target = Cursor(session)
        if decoding and (fault := own.fault(self.engine, session)):
            raise UnsupportedModel(
                f"`{decoding.name}` cannot take candidates of `{model.name}` back: {fault}"
            )
        self.decoding: Decoding | None = decoding.make(self.target) if decoding else None
        if draft.name != OFF_PART and (fault := own.fault(self.engine, session)):
            self._off, draft, self.draft_engine = fault, plugins.parse("drafters", OFF_PART), None
        guessing = plugins.parse("draft_length", NOTHING) if self._off else self.draft_length_spec
        self.draft_length: DraftLengthPolicy = guessing.make()
        self._pace = probes.key(
            "pace",
            own.key,
            str(draft),
            str(self.draft_length_spec),
            self.draft_making and self.draft_making.key,
        )
        self.draft_length.restore(probes.read(self._pace))
        self.verifier = self.verifier_spec.make()
        given = (self.draft_engine, self.engine.vocab, *between) if self.draft_engine else ()
        self._new_drafter = partial(draft.make, self.target, *given)
        self.drafter: Drafter = self._new_drafter()

    @property
    def engines(self) -> list[tuple[LoadSpec, Engine]]:
        """The engines that are loaded, for another runtime to share."""
        own = [(self.making, self.engine)]
        return (
            [*own, (self.draft_making, self.draft_engine)] if self.draft_making and self.draft_engine else own
        )

    @property
    def note(self) -> str | None:
        """What the drafter has to say, such as a store that it cannot use."""
        return getattr(self.drafter, "note", None)

    @property
    def lossless(self) -> bool:
        """Tell whether the text is the model's own, or of its own distribution."""
        return self.decoding is None and self.verifier.lossless

    @property
    def draft_name(self) -> str | None:
        """The name of the draft model, None without one."""
        return self.draft_making.model.name if self.draft_making else None

    def forget(self) -> None:
        """Forget every text: the target's cache is empty, and the drafter has seen none.

        What the draft-length policy has learned about costs and acceptance stays.
        """
        self.target.read([], rows=0)
        self.drafter = self._new_drafter()

    def encode(self, text: str, *, raw: bool) -> list[int]:
        """Return the tokens of a text: `raw` ones begin as the model's texts do, rendered ones are whole."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return [*self.model.first_tokens(), *ids] if raw else ids

    def question(self, text: str) -> list[int]:
        """Return the tokens of a conversation's first turn; the bare text where there is no chat template."""
        return self.model.encode_chat([{"role": "user", "content": text}])

    def answer(
        self,
        prompt: Tokens,
        *,
        sampling: Sampling,
        seed: int | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        grammar: str | None = None,
        special: bool = False,
    ) -> tuple[Answer, Generator[Step, None, None]]:
        """Return an empty answer to `prompt` and the rounds that fill it as they are drawn.

        A `grammar` (grammar.py) says what the answer may be, `special` that its text shows special tokens.
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
        processor = OutputProcessor(
            TextStream(self.tokenizer, shown=special),
            stop_tokens=self.model.stop_tokens(),
            stop=stop,
            room=room,
        )
        sampler = Sampler(
            sampling,
            seed=int.from_bytes(os.urandom(7)) if seed is None else seed,
            answer_from=len(prompt),
            coupled=self.verifier.coupled,
            constraint=self._constraint(grammar) if grammar else None,
        )
        return answer, self._steps(answer, prompt, sampler, processor, full=room == left)

    def _constraint(self, grammar: str) -> Grammar:
        if self.decoding_spec:
            raise BadValue(
                f"`{self.decoding_spec.name}` keeps to no grammar", "Leave out the grammar, or `--decoding`"
            )
        ends = tuple(self.model.stop_tokens())
        return Grammar(grammar, words(self.model.folder / "tokenizer.json", self.engine.vocab, ends))

    def _steps(
        self, answer: Answer, prompt: list[int], sampler: Sampler, processor: OutputProcessor, full: bool
    ) -> Generator[Step, None, None]:
        started, piece = perf_counter(), 0.0
        try:
            answer.kept_tokens = self.prompts.recall(self.target, prompt[:-1])
            began, unread = perf_counter(), len(prompt) - shared_prefix(self.target.tokens, prompt)
            self.target.read(prompt[:-1], rows=0)
            answer.prompt_seconds = perf_counter() - started
            piece = (perf_counter() - began) / max(unread, 1) * self.target.chunk
            for last in self._loop(prompt, sampler, processor):
                answer.stats.add(last)
                answer.token_ids += last.tokens
                answer.text += last.text
                answer.finish_reason = last.finish or answer.finish_reason
                answer.seconds = perf_counter() - started
                yield last
        finally:
            if learned := self.draft_length.state():
                probes.add(self._pace, **learned)
            answer.full = full and answer.finish_reason == "length"
            answer.reason = self._why_off(answer)
            answer.seconds = perf_counter() - started
            self.prompts.keep(self.target, piece)

    def _loop(self, prompt: list[int], sampler: Sampler, processor: OutputProcessor) -> Iterator[Step]:
        if self.decoding:
            return run_decoding(prompt, self.decoding, processor)
        return decode(prompt, self.target, self.drafter, self.draft_length, self.verifier, sampler, processor)

    def _why_off(self, answer: Answer) -> str | None:
        """Say why nothing was guessed, or None when something was."""
        if answer.stats.drafted:
            return None
        nothing = f"`{self.draft_spec.name}` found nothing to guess"
        return self._off or self.draft_length.reason or nothing
