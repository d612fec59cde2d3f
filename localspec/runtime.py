"""The one place where engine, drafter, lookahead, verifier and sampler are put together."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from localspec import devices, plugins
from localspec.core.cursor import Cursor
from localspec.core.decode import decode
from localspec.core.proof import why_no_rewind
from localspec.core.sampler import Sampler, Sampling
from localspec.core.settle import Settler
from localspec.core.tally import Tally
from localspec.core.tokenizer import TextStream
from localspec.errors import (
    BadValue,
    ContextFull,
    EmptyPrompt,
    TooLittleMemory,
    UnknownModel,
    UnknownName,
)
from localspec.formats import vocabulary
from localspec.library import Library, Model, Progress, tuned, verdicts
from localspec.plugins import Spec

if TYPE_CHECKING:
    from localspec.core.contracts import Engine, Lookahead, Round, Session, Tokens

AUTO, OFF, OFF_PART = "auto", "off", "none"


@dataclass(frozen=True, slots=True)
class Choice:
    """Which parts to use, as texts like `ngram:longest=4`. Device and threads are the engine's.

    `auto` as the engine is the one that suits the machine and the model.
    """

    engine: str = AUTO
    draft: str = AUTO
    lookahead: str = "measured"
    verifier: str = "exact"
    device: str | None = None
    threads: int | None = None
    tuned: bool = False  # whether a setting that `localspec tune` found may take the place of this one

    def check(self) -> None:
        """Raise UnknownName or BadValue for a wrong part or option, before anything is loaded."""
        if self.engine != AUTO:
            engine_spec(self.engine, self.device, self.threads)
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

    def __init__(
        self,
        name: str,
        choice: Choice,
        library: Library,
        progress: Progress,
        loaded: Sequence[tuple[Making, Engine]] = (),
    ) -> None:
        """Load the model called `name`, which is fetched when it is missing, and its draft.

        Engines that are `loaded` already are used where they are what is needed. Raises what a wrong choice,
        a model that cannot be had or read, a device that is not there and too little memory raise.
        """
        choice, self.tuned = find_tuned(name, choice, library, progress)
        self.engine_spec, self.engine_reason, model = find_engine(name, choice, library, progress)
        self.model = model
        self.lookahead_spec = plugins.parse("lookaheads", choice.lookahead)
        self.verifier_spec = plugins.parse("verifiers", choice.verifier)
        draft, draft_model, guessing = find_draft(choice, model, self.engine_spec, library, progress)
        self.draft_spec = draft
        self._off = "it was asked for" if choice.draft == OFF else None
        if draft_model is not None and not same_tokenizer(model, draft_model):
            vocabulary.check_same(model.tokenizer(), draft_model.tokenizer(), model.name, draft_model.name)
        self.making = own = Making(self.engine_spec, model)
        self.draft_making = Making(guessing, draft_model) if draft_model else None
        needed = list(dict.fromkeys([own, self.draft_making or own]))
        engines = dict(loaded)
        check_memory([making for making in needed if making not in engines])
        with ThreadPoolExecutor(3) as pool:  # each of the three keeps one core busy
            tokenizer = pool.submit(model.tokenizer)
            making = {making: pool.submit(making.make) for making in needed if making not in engines}
            engines |= {making: made.result() for making, made in making.items()}
            self.tokenizer = tokenizer.result()
        self.engine: Engine = engines[own]
        self.draft_engine = engines[self.draft_making] if self.draft_making else None
        session = self.engine.session()
        session.vocabulary = model.manifest.digests.get("tokenizer.json", "")
        self.target = Cursor(session)
        if draft.name != OFF_PART and (fault := own.fault(self.engine, session)):
            self._off, draft, self.draft_engine = fault, plugins.parse("drafters", OFF_PART), None
        self.lookahead: Lookahead = self.lookahead_spec.make()
        self._pace = verdicts.key(
            "pace", own.key, str(draft), str(self.lookahead_spec), self.draft_making and self.draft_making.key
        )
        self.lookahead.restore(verdicts.read(self._pace))
        self.verifier = self.verifier_spec.make()
        given = (self.draft_engine, self.engine.vocab) if self.draft_engine else ()
        self.drafter = draft.make(self.target, *given)

    @property
    def engines(self) -> list[tuple[Making, Engine]]:
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
    def draft_name(self) -> str | None:
        """The name of the draft model, None without one."""
        return self.draft_making.model.name if self.draft_making else None

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
            if learned := self.lookahead.state():
                verdicts.add(self._pace, **learned)
            answer.full = full and answer.finish_reason == "length"
            answer.reason = self._why_off(answer)
            answer.seconds = perf_counter() - started

    def _why_off(self, answer: Answer) -> str | None:
        """Say why nothing was guessed, or None when something was."""
        if answer.tally.drafted:
            return None
        nothing = f"`{self.draft_spec.name}` found nothing to guess"
        return self._off or self.lookahead.reason or nothing


@dataclass(frozen=True, slots=True, eq=False)
class Making:
    """An engine that is to be made of a model's files; two are the same when spec and files are."""

    spec: Spec
    model: Model

    def __hash__(self) -> int:
        return hash((str(self.spec), self.model.folder))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Making):
            return NotImplemented
        return (str(self.spec), self.model.folder) == (str(other.spec), other.model.folder)

    @property
    def path(self) -> Path:
        """The files that the engine reads."""
        return self.model.path_for(self.spec.name, self.spec.part.made_by.forms)

    @property
    def memory(self) -> int:
        """Bytes that its weights take, about."""
        return int(self.spec.part.made_by.weighs(self.path, **self.spec.options))

    @property
    def on_this_memory(self) -> bool:
        """Tell whether the weights take the machine's own memory, not a card's."""
        setting = self.spec.part.settings.get("device")
        device = str(self.spec.options.get("device", setting.default if setting else "cpu")).lower()
        return device == "cpu" or (device == AUTO and not devices.nvidia())

    def make(self) -> Engine:
        """Return the engine."""
        made: Engine = self.spec.make(self.path)
        return made

    @property
    def key(self) -> str:
        """The name of what is found out about this model on this engine."""
        library = devices.LIBRARIES.get(self.spec.name)
        return verdicts.key(str(self.spec), library and library.version, verdicts.stamp(self.path))

    def fault(self, engine: Engine, session: Session) -> str | None:
        """Return why guesses cannot be taken back, None when they can; tried once for a model and engine."""
        known = verdicts.read(self.key)
        if "rewind" not in known:
            known = {"rewind": why_no_rewind(session, engine.vocab)}
            verdicts.add(self.key, **known)
        found: str | None = known["rewind"]
        return found


def find_tuned(
    name: str, choice: Choice, library: Library, progress: Progress
) -> tuple[Choice, float | None]:
    """Return the setting that was found best for the model called `name`, and its gain; else `choice`."""
    if not choice.tuned:
        return choice, None
    model = library.resolve(name, progress, _forms(devices.choose().engine))
    known = tuned.read(model)
    return (Choice(**known["choice"]), known["gain"]) if known else (choice, None)


def find_engine(name: str, choice: Choice, library: Library, progress: Progress) -> tuple[Spec, str, Model]:
    """Return the engine for the model called `name`, why that one, and the model.

    `auto` is what `devices.choose` says; llama.cpp takes a GGUF that OpenVINO cannot read.
    """
    if choice.engine != AUTO:
        spec = engine_spec(choice.engine, choice.device, choice.threads)
        return spec, "it was asked for", library.resolve(name, progress, spec.part.made_by.forms)
    chosen = devices.choose(choice.device)
    model = library.resolve(name, progress, _forms(chosen.engine))
    if chosen.engine == "torch" and choice.device is None:
        needed = Making(engine_spec("torch", chosen.device), model).memory + devices.SPARE
        chosen = devices.choose(fits=lambda there: there.free is None or needed < there.free)
        model = library.resolve(name, progress, _forms(chosen.engine))
    default = plugins.part("engines", chosen.engine).settings["device"].default
    device = choice.device or (None if chosen.device == default else chosen.device)
    if chosen.engine == "openvino" and model.form("openvino") is None:
        return engine_spec("llamacpp", choice.device, choice.threads), "OpenVINO cannot read the model", model
    return engine_spec(chosen.engine, device, choice.threads), chosen.reason, model


def _forms(engine: str) -> tuple[str, ...]:
    """Return the forms that will do for an engine that was chosen, not asked for."""
    forms: tuple[str, ...] = plugins.part("engines", engine).made_by.forms
    return (*forms, "gguf") if engine == "openvino" and devices.LIBRARIES["llamacpp"].version else forms


def check_memory(makes: Sequence[Making]) -> None:
    """Raise TooLittleMemory unless all weights fit in what is free, each file's counted once."""
    sizes = {making.path: making.memory for making in makes if making.on_this_memory}
    free = devices.free_memory()
    if sizes and (needed := sum(sizes.values()) + devices.SPARE) > free:
        raise TooLittleMemory(" and ".join(making.model.name for making in makes), needed, free)


def engine_spec(text: str, device: str | None = None, threads: int | None = None) -> Spec:
    """Return an engine with its device and threads; raises BadValue for one that takes neither."""
    return with_options(plugins.parse("engines", text), device=device, threads=threads)


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


def find_draft(
    choice: Choice, target: Model, engine: Spec, library: Library, progress: Progress
) -> tuple[Spec, Model | None, Spec]:
    """Return the drafter that is asked for, the draft model if it has one, and the engine of that.

    `auto` is the catalogue's pair when it is on disk, else what the text itself repeats. A text that names no
    part is a model's name. The draft's engine is the target's `engine` unless the draft asks for another.
    """
    text = choice.draft
    if text == OFF:
        return plugins.parse("drafters", OFF_PART), None, engine
    if text == AUTO:
        pair = library.find(target.draft) if target.draft else None
        if pair and any(map(pair.form, engine.part.made_by.forms)):
            known = verdicts.read(Making(engine, target).key).get("drafts", {}).get(pair.name, {})
            if known.get("same", True):
                return _model_draft(pair.name), pair, engine
            progress.say(f"`{pair.name}` is left out: `localspec doctor` saw it change the text")
        return plugins.parse("drafters", "ngram"), None, engine
    name = text.partition(":")[0]
    if name in plugins.names("drafters"):
        spec = plugins.parse("drafters", text)
        if "name" not in spec.options:
            return spec, None, engine
        own = _draft_engine(engine, spec.options)
        return spec, library.resolve(spec.options["name"], progress, own.part.made_by.forms), own
    try:
        found = library.resolve(text, progress, engine.part.made_by.forms)
    except UnknownModel as error:
        near = [*plugins.names("drafters"), *(model.name for model in library.all())]
        raise UnknownName(f"There is no drafter or model called `{text}`", text, near) from error
    return _model_draft(found.name), found, engine


def _draft_engine(target: Spec, asked: Mapping[str, Any]) -> Spec:
    """Return the target's engine, or the one that the draft names, with the draft's device and threads."""
    spec = plugins.parse("engines", asked["runs"]) if asked.get("runs") else target
    return with_options(spec, device=asked.get("device") or None, threads=asked.get("threads") or None)


def _model_draft(name: str) -> Spec:
    return Spec(plugins.part("drafters", "model"), {"name": name})
