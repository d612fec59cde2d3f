"""A loaded model with its draft, and the answers it generates."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from localspec import plugins
from localspec.core.blocks.decode import decode_blocks
from localspec.core.contracts import (
    DraftModel,
    ExpectingDrafter,
    LossyVerifier,
    PictureSession,
    Verifier,
)
from localspec.core.cursor import Cursor
from localspec.core.decode import decode, run_decoding
from localspec.core.sampler import Sampler, Sampling
from localspec.core.stop import OutputProcessor
from localspec.core.text import TextStream
from localspec.core.types import Prompt, shared_prefix
from localspec.drafting.tiers import FULL
from localspec.errors import BadValue, ContextFull, EmptyPrompt, UnsupportedModel
from localspec.library import compiled_folder
from localspec.output.grammar import Grammar, grammar_tokenizer
from localspec.output.reasoning import ThoughtMarks
from localspec.output.repetition import Repetition
from localspec.runtime import diffusion, pictures
from localspec.runtime.answer import Answer
from localspec.runtime.choice import OFF, OFF_PART, Choice
from localspec.runtime.load import Loaded, load
from localspec.runtime.resolution import Resolution, resolve
from localspec.runtime.shared_passes import SharedEngine, shared_engines
from localspec.state import probes
from localspec.state.prompt_cache import FOLDER, PromptCache

if TYPE_CHECKING:
    from localspec.core.blocks.parts import BlockSampler
    from localspec.core.contracts import Decoding, Drafter, DraftLengthPolicy, Engine
    from localspec.core.types import Step, Tokens
    from localspec.formats.tokenizer.conversation import Messages, Render, Tools
    from localspec.formats.tokenizer.token_bytes import Translation
    from localspec.library import Library, Progress
    from localspec.plugins import Spec
    from localspec.runtime.loading import LoadSpec

SEARCHED = "max_tokens"  # a drafter's option: the tokens of earlier texts that it searches
NOTHING = "fixed:tokens=0"  # not even the tokens that a grammar forces


def greedy(
    runtime: Runtime,
    prompt: Tokens,
    drafter: Drafter,
    *,
    guesses: int,
    max_new_tokens: int,
    target: Cursor | None = None,
) -> list[Step]:
    """Return the steps of a greedy answer of at most `max_new_tokens`, with `guesses` per step of `drafter`.

    The prompt is read by the runtime's target, or by another `target` of the same model, before the answer.
    """
    target = target or runtime.target
    target.read(prompt[:-1], rows=0)
    processor = OutputProcessor(
        TextStream(runtime.tokenizer), stop_tokens=runtime.model.stop_tokens(), max_new_tokens=max_new_tokens
    )
    policy = plugins.parse("draft_length", f"fixed:tokens={guesses}").make()
    verifier = plugins.parse("verifiers", "exact").make()
    return list(decode(list(prompt), target, drafter, policy, verifier, Sampler(Sampling()), processor))


def divided(spec: Spec, texts: int) -> dict[str, Any]:
    """Return a drafter's options for one of several texts: its part of the tokens that all may search."""
    setting = spec.part.settings.get(SEARCHED)
    if texts == 1 or setting is None:
        return spec.options
    tokens = spec.options.get(SEARCHED, setting.default) // texts
    return spec.options | {SEARCHED: max(tokens, int(setting.option.least or 0))}


class Runtime:
    """A model that answers, with its draft. One text at a time; the KV cache is kept from text to text."""

    def __init__(
        self,
        resolution: Resolution,
        engines: Sequence[tuple[LoadSpec, Engine]] = (),
        prompt_cache_bytes: int = 0,
        loaded: Loaded | None = None,
        texts: int = 1,
    ) -> None:
        """Load what `resolution` says; `engines`, or all that is `loaded` already, are used again.

        `texts` runtimes of the model share what drafters keep of earlier texts in memory, each its part.
        The prompt cache of all models may take `prompt_cache_bytes` on disk (state/prompt_cache.py). Raises
        TooLittleMemory, UnsupportedModel for a decoding that the model cannot rewind, and what engines raise.
        """
        self.resolution = resolution
        target, draft = resolution.target, resolution.draft
        self.model = target.model
        self.decoding_spec = resolution.decoding
        self.draft_spec = draft.spec
        loaded = loaded or load(resolution, engines)
        self.tokenizer = loaded.tokenizer
        self.thought_marks = ThoughtMarks.of(self.tokenizer)
        self.engine = loaded.engines[target]
        self.draft_engine = loaded.engines[draft.load] if draft.load else None
        self._middle_engine = loaded.engines[draft.middle] if draft.middle else None
        folder = compiled_folder(self.model.folder)
        self.prompt_cache = PromptCache(folder / FOLDER / target.key, folder.parent, prompt_cache_bytes)
        session = self.engine.session()
        session.vocabulary = self.model.manifest.digests.get("tokenizer.json", "")
        self.target = Cursor(session)
        self.decoding = self._make_decoding(resolution)
        self._off_reason = resolution.off_reason
        self._make_drafter = self._drafter_factory(loaded.translation, texts)
        self.drafter: Drafter = self._new_drafter()
        policy = plugins.parse("draft_length", NOTHING) if self._off_reason else resolution.draft_length
        self.draft_length: DraftLengthPolicy = policy.make()
        self._policy_key = probes.key(
            *("draft length", target.key, str(draft.spec), str(policy)),
            draft.load and draft.load.key,
            *([draft.middle.key] if draft.middle else []),
        )
        self.draft_length.restore(probes.read(self._policy_key))
        self.verifier: Verifier = resolution.verifier.make()
        self._filler: BlockSampler | None = self.sampler_spec.make() if self.sampler_spec else None
        self._follow()

    @classmethod
    def load(
        cls,
        name: str,
        choice: Choice,
        library: Library,
        progress: Progress,
        engines: Sequence[tuple[LoadSpec, Engine]] = (),
        prompt_cache_bytes: int = 0,
    ) -> Runtime:
        """Resolve the model called `name` and load it; raises what `resolve` and the constructor raise."""
        return cls(resolve(name, choice, library, progress), engines, prompt_cache_bytes)

    @classmethod
    def load_several(
        cls,
        name: str,
        choice: Choice,
        library: Library,
        progress: Progress,
        texts: int,
        prompt_cache_bytes: int = 0,
    ) -> list[Runtime]:
        """Return runtimes of one loaded model that answer in threads of their own and share passes.

        They are `texts`, or one if the engine reads one text in a pass. Raises as `load`.
        """
        resolution = resolve(name, choice, library, progress)
        loaded = load(resolution)
        shared = shared_engines(loaded.engines, resolution.target, texts)
        return [
            cls(resolution, (), prompt_cache_bytes, replace(loaded, engines=engines), len(shared))
            for engines in shared
        ]

    def _make_decoding(self, resolution: Resolution) -> Decoding | None:
        spec = resolution.decoding
        if spec is None:
            return None
        if fault := resolution.target.fault(self.engine, self.target.session):
            raise UnsupportedModel(f"`{spec.name}` cannot rewind candidates of `{self.model.name}`: {fault}")
        decoding: Decoding = spec.make(self.target)
        return decoding

    def _drafter_factory(self, translation: Translation | None, texts: int) -> partial[Drafter]:
        """Return what makes the drafter; none drafts for a target that cannot rewind."""
        spec, engine = self.draft_spec, self.draft_engine
        if spec.name != OFF_PART and (
            fault := self.resolution.target.fault(self.engine, self.target.session)
        ):
            self._off_reason, self.draft_engine, self._middle_engine = fault, None, None
            return partial(plugins.parse("drafters", OFF_PART).make, self.target)
        head = self.resolution.draft.is_head
        draft_model = DraftModel(engine, self.engine.vocab, translation, head) if engine else None
        models: list[DraftModel | None] = [draft_model] if draft_model else []
        if self._middle_engine:
            models = [draft_model, DraftModel(self._middle_engine, self.engine.vocab)]
        own = replace(spec, options=divided(spec, texts))
        return partial(own.make, self.target, *models)

    def _new_drafter(self) -> Drafter:
        return pictures.drafting(self._make_drafter(), self.target.session)

    def _follow(self) -> None:
        """Tell a lossy verifier, or the loop of a diffusion model, whose guesses they verify."""
        length = self.resolution.draft_length
        self._drafting = diffusion.drafting_of(self.drafter, length) if self._filler else None
        if isinstance(self.verifier, LossyVerifier):
            self.verifier.follow(self.drafter)

    @property
    def engines(self) -> list[tuple[LoadSpec, Engine]]:
        """The loaded engines, for another runtime to use."""
        draft = self.resolution.draft
        engines = (self.engine, self.draft_engine, self._middle_engine)
        specs = (self.resolution.target, draft.load, draft.middle)
        return [(spec, engine) for spec, engine in zip(specs, engines, strict=True) if spec and engine]

    @property
    def sampler_spec(self) -> Spec | None:
        """The sampler of a diffusion model, None for another."""
        return self.resolution.sampler

    @property
    def lossless(self) -> bool:
        """Return whether the text is the model's own, or follows its own distribution."""
        if self.sampler_spec and not diffusion.is_exact(self.sampler_spec, self.draft_spec):
            return False
        return self.decoding is None and self.verifier.lossless and not self.vision_tokens

    @property
    def vision_tokens(self) -> str:
        """How many of a picture's tokens run in which layers, empty if all do."""
        return str(self.resolution.target.spec.options.get("vision_tokens", ""))

    @property
    def tolerance(self) -> float:
        """The gap in logits at which drafted text may differ from plain text, 0 if it never does."""
        return self.resolution.target.tolerance(self.engine)

    @property
    def draft_name(self) -> str | None:
        """The name of the draft model, None without one."""
        draft = self.resolution.draft.load
        return draft.model.name if draft else None

    def forget(self) -> None:
        """Forget all texts: empty the target's KV cache and make a new drafter.

        The draft-length policy keeps what it has learned about costs and acceptance.
        """
        self.drop_text()
        self.drafter = self._new_drafter()
        self._follow()

    def drop_text(self) -> None:
        """Empty the target's KV cache; the drafter may still copy from the text."""
        self.target.read([], rows=0)
        self._leave()

    def _leave(self) -> None:
        """Let no shared pass wait for this runtime."""
        for engine in (self.engine, self.draft_engine, self._middle_engine):
            if isinstance(engine, SharedEngine):
                engine.leave()

    def encode(self, text: str, *, raw: bool) -> list[int]:
        """Return the tokens of a text; `raw` adds what begins every text of the model (BOS)."""
        if raw:
            return self.model.encode(text)
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def question(self, text: str) -> list[int]:
        """Return the tokens of a conversation's first turn; the bare text without a chat template."""
        return self.model.encode_chat([{"role": "user", "content": text}])

    def encode_chat(
        self, messages: Messages, tools: Tools | None = None, render: Render | None = None
    ) -> Prompt:
        """Return the prompt for the next reply with the pictures of its messages.

        Raises the errors of `StoredModel.encode_chat`, and PromptError for a picture that cannot be seen.
        """
        tokens = self.model.encode_chat(messages, tools, render)
        return pictures.with_pictures(self.target.session, self.model.name, tokens, messages)

    def tokens_of(self, image: str) -> int:
        """Return how many tokens stand for a picture in base64; raises PromptError if it cannot be seen."""
        return pictures.tokens_of(self.target.session, self.model.name, image)

    def _is_number(self, token: int) -> bool:
        """Return whether a token is part of a number."""
        return str(self.tokenizer.decode([token])).strip().isdigit()

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
        marks: Mapping[int, str] | None = None,
        loop_guard: bool = False,
        stop_tokens: Collection[int] = (),
        alternatives: int | None = None,
        draft_length: DraftLengthPolicy | None = None,
        prediction: Tokens = (),
        cancelled: Callable[[], bool] = lambda: False,
    ) -> tuple[Answer, Generator[Step, None, None]]:
        """Return an empty answer to `prompt` and the steps that fill it as the caller draws them.

        A `grammar` (output/grammar.py) constrains the answer; `special` shows special tokens in its text.
        Tokens that are `marks` (with their texts) are shown too, and the steps tell their places. With a
        `loop_guard` an answer that repeats one passage without end (output/repetition.py) is ended.
        `stop_tokens` end it beside the model's own. The steps have likelihoods with so many `alternatives`.
        A `draft_length` decides instead of the runtime's own, and what it learns is not kept. The drafter
        copies from a `prediction`, the expected text. `cancelled` ends the reading of the prompt.
        Raises EmptyPrompt, BadValue, UnsupportedModel for a token that the model does not have, and
        ContextFull for a prompt that leaves no room for an answer.
        """
        self._check_asked(sampling, stop, alternatives, prediction)
        prompt = self._checked(prompt)
        left = self.engine.context - len(prompt)
        limit = left if max_tokens is None else min(max_tokens, left)
        processor = self._processor(stop, stop_tokens, special, marks, loop_guard, limit)
        sampler = self._sampler(sampling, seed, len(prompt), grammar, alternatives)
        answer = Answer(prompt_tokens=len(prompt))
        policy = self.draft_length if draft_length is None or self._off_reason else draft_length
        steps = self._decode(prompt, sampler, processor, policy, prediction[: self.engine.context])
        return answer, self._steps(answer, prompt, policy, steps, cancelled, to_the_end=limit == left)

    def _sampler(
        self,
        sampling: Sampling,
        seed: int | None,
        answer_from: int,
        grammar: str | None,
        alternatives: int | None,
    ) -> Sampler:
        return Sampler(
            sampling,
            seed=int.from_bytes(os.urandom(7)) if seed is None else seed,
            answer_from=answer_from,
            coupled=self.verifier.coupled,
            quantiles=self.verifier.quantiles,
            constraint=self._constraint(grammar) if grammar else None,
            alternatives=alternatives,
        )

    def _check_asked(
        self, sampling: Sampling, stop: Sequence[str], alternatives: int | None, prediction: Tokens
    ) -> None:
        """Raise BadValue for what the model or its parts cannot do."""
        if "" in stop:
            raise BadValue("`stop` is empty", "Give the text to stop at, or leave it out")
        if (token := max(sampling.logit_bias, default=0)) >= self.engine.vocab:
            raise BadValue(
                f"`logit_bias` names token {token}, and `{self.model.name}` has {self.engine.vocab} tokens",
                None,
            )
        own = self.decoding_spec or self.sampler_spec
        if own and alternatives is not None:
            raise BadValue(f"`{own.name}` tells no `logprobs`", "Leave one of them out")
        if prediction and not isinstance(self.drafter, ExpectingDrafter):
            drafter = OFF if self._off_reason else self.draft_spec
            raise BadValue(
                f"The drafter `{drafter}` cannot copy from a `prediction`",
                "Use `hybrid` or `suffix`, or leave the prediction out",
            )

    def _processor(
        self,
        stop: Sequence[str],
        stop_tokens: Collection[int],
        special: bool,
        marks: Mapping[int, str] | None,
        loop_guard: bool,
        limit: int,
    ) -> OutputProcessor:
        return OutputProcessor(
            TextStream(self.tokenizer, shown=special or tuple((marks or {}).values())),
            stop_tokens={*self.model.stop_tokens(), *stop_tokens},
            stop=stop,
            marks=marks,
            repeats=Repetition(self._is_number).add if loop_guard else None,
            max_new_tokens=limit,
        )

    def _checked(self, prompt: Tokens) -> Prompt:
        """Return a prompt that the model can read; raises the errors of `answer`."""
        if not prompt:
            raise EmptyPrompt
        if (largest := max(prompt)) >= self.engine.vocab:
            raise UnsupportedModel(
                f"The prompt has token {largest}, and `{self.model.name}` has {self.engine.vocab} tokens",
                "Its tokenizer is another model's: get the model again",
            )
        if len(prompt) >= self.engine.context:
            raise ContextFull(len(prompt), self.engine.context)
        return prompt if isinstance(prompt, Prompt) else Prompt(prompt)

    def _constraint(self, grammar: str) -> Grammar:
        if self.decoding_spec:
            raise BadValue(
                f"`{self.decoding_spec.name}` does not support a grammar",
                "Leave out the grammar, or `--decoding`",
            )
        if self.sampler_spec:
            raise BadValue(
                f"`{self.model.name}` fills in blocks, and follows no grammar", "Leave the grammar out"
            )
        ends = tuple(self.model.stop_tokens())
        return Grammar(grammar, grammar_tokenizer(self.tokenizer, self.engine.vocab, ends))

    def _steps(
        self,
        answer: Answer,
        prompt: Prompt,
        policy: DraftLengthPolicy,
        decoded: Generator[Step, None, None],
        cancelled: Callable[[], bool],
        *,
        to_the_end: bool,
    ) -> Generator[Step, None, None]:
        """Read the prompt, then yield the steps of the answer, filling `answer` with each."""
        chunk_seconds, resumed = 0.0, perf_counter()
        try:
            chunk_seconds = self._read_prompt(answer, prompt, cancelled)
            if cancelled():
                return
            with closing(decoded) as steps:
                for last in steps:
                    answer.stats.add(last)
                    if isinstance(self.verifier, LossyVerifier):
                        answer.tiers.add(self.verifier.emitted[: len(last.tokens)], FULL)
                    answer.token_ids += last.tokens
                    answer.text += last.text
                    answer.marks += last.marks
                    answer.finish_reason = last.finish or answer.finish_reason
                    answer.seconds += perf_counter() - resumed
                    resumed = perf_counter()
                    try:
                        yield last
                    finally:
                        resumed = perf_counter()
        finally:
            answer.seconds += perf_counter() - resumed
            self._leave()
            answer.context_full = to_the_end and answer.finish_reason == "length"
            answer.off_reason, answer.gains = self._why_off(answer, policy), policy.gains
            if policy is self.draft_length and (learned := policy.state()):
                probes.add(self._policy_key, **learned)
            self.prompt_cache.keep(self.target, chunk_seconds)

    def _read_prompt(self, answer: Answer, prompt: Prompt, cancelled: Callable[[], bool]) -> float:
        """Read all but the last token of the prompt, until cancelled; return the seconds of a chunk."""
        started, chunk = perf_counter(), self.target.chunk
        if isinstance(self.target.session, PictureSession):
            self.target.see(prompt.pictures, prompt)
        answer.cached_prompt_tokens = self.prompt_cache.restore(self.target, prompt[:-1])
        restored = perf_counter()
        held = shared_prefix(self.target.tokens, prompt)
        unread = len(prompt) - held
        for end in [*range(held + chunk, len(prompt) - 1, chunk), len(prompt) - 1]:
            if not cancelled():
                self.target.read(prompt[:end], rows=0)
        answer.prompt_seconds = perf_counter() - started
        return (perf_counter() - restored) / max(unread, 1) * chunk

    def _decode(
        self,
        prompt: list[int],
        sampler: Sampler,
        processor: OutputProcessor,
        policy: DraftLengthPolicy,
        prediction: Tokens,
    ) -> Generator[Step, None, None]:
        if self.decoding:
            yield from run_decoding(prompt, self.decoding, processor)
            return
        if self._filler:
            yield from decode_blocks(prompt, self.target, self._filler, sampler, processor, self._drafting)
            return
        if prediction and isinstance(self.drafter, ExpectingDrafter):
            self.drafter.expect(prompt, prediction)
        yield from decode(prompt, self.target, self.drafter, policy, self.verifier, sampler, processor)

    def _why_off(self, answer: Answer, policy: DraftLengthPolicy) -> str | None:
        """Return why nothing was drafted, None if something was."""
        if answer.stats.drafted:
            return None
        nothing = f"`{self.draft_spec.name}` found nothing to guess"
        pace = self._drafting.pace.reason if self._drafting else policy.reason
        return self._off_reason or pace or nothing
