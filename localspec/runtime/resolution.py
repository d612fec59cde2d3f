"""What is asked for -> engine, model and draft: the specs of parts, and the models whose files they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from localspec import devices, plugins
from localspec.core.rewind_check import rewind_fault
from localspec.errors import BadValue, TooLittleMemory, UnknownModel, UnknownName
from localspec.formats.tokenizer import translation, vocabulary
from localspec.library import Library, Model, Progress
from localspec.plugins import Spec
from localspec.state import probes, tuned

if TYPE_CHECKING:
    from localspec.core.contracts import Engine, Session
    from localspec.formats.tokenizer.token_bytes import Translation

AUTO, OFF, OFF_PART, HYBRID = "auto", "off", "none", "hybrid"
STANDARD = "standard"  # the decoding that is the model's own


@dataclass(frozen=True, slots=True)
class Choice:
    """Which parts to use, as texts like `ngram:longest=4`. Device and threads are the engine's.

    `auto` as the engine is the one that suits the machine and the model. A `decoding` other than the model's
    own writes another text.
    """

    engine: str = AUTO
    draft: str = AUTO
    draft_length: str = "adaptive"
    verifier: str = "exact"
    device: str | None = None
    threads: int | None = None
    decoding: str = STANDARD
    tuned: bool = False  # whether a setting that `localspec tune` found may take the place of this one

    def check(self) -> None:
        """Raise UnknownName or BadValue for a wrong part or option, before anything is loaded."""
        engine = None if self.engine == AUTO else engine_spec(self.engine, self.device, self.threads)
        plugins.parse("draft_length", self.draft_length)
        plugins.parse("verifiers", self.verifier)
        if self.draft.partition(":")[0] in plugins.names("drafters"):
            draft = plugins.parse("drafters", self.draft)
            if engine:
                serving(draft, engine)
        if self.decoding != STANDARD:
            self._check_decoding(engine)

    def _check_decoding(self, engine: Spec | None) -> None:
        """Raise UnknownName or BadValue for a decoding that is not there or not beside the other parts."""
        decoding, idle = decoding_spec(self.decoding), Choice()
        for name in ("draft", "draft_length", "verifier"):
            if getattr(self, name) not in (getattr(idle, name), OFF):
                raise BadValue(
                    f"`--{name}` does nothing beside `--decoding {decoding}`, which guesses nothing",
                    f"Leave `--{name}` out",
                )
        if engine:
            serving(decoding, engine)


@dataclass(frozen=True, slots=True, eq=False)
class LoadSpec:
    """An engine that is to be made of a model's files; two are the same when spec and files are."""

    spec: Spec
    model: Model

    def __hash__(self) -> int:
        return hash((str(self.spec), self.model.folder))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LoadSpec):
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
        return probes.key(str(self.spec), library and library.version, probes.stamp(self.path))

    def fault(self, engine: Engine, session: Session) -> str | None:
        """Return why guesses cannot be taken back, None when they can; tried once for a model and engine."""
        known = probes.read(self.key)
        if "rewind" not in known:
            known = {"rewind": rewind_fault(session, engine.vocab)}
            probes.add(self.key, **known)
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
        needed = LoadSpec(engine_spec("torch", chosen.device), model).memory + devices.SPARE
        chosen = devices.choose(fits=lambda there: there.free is None or needed < there.free)
        model = library.resolve(name, progress, _forms(chosen.engine))
    default = plugins.part("engines", chosen.engine).settings["device"].default
    device = choice.device or (None if chosen.device == default else chosen.device)
    if chosen.engine == "openvino" and model.files_in("openvino") is None:
        return engine_spec("llamacpp", choice.device, choice.threads), "OpenVINO cannot read the model", model
    return engine_spec(chosen.engine, device, choice.threads), chosen.reason, model


def _forms(engine: str) -> tuple[str, ...]:
    """Return the forms that will do for an engine that was chosen, not asked for."""
    forms: tuple[str, ...] = plugins.part("engines", engine).made_by.forms
    return (*forms, "gguf") if engine == "openvino" and devices.LIBRARIES["llamacpp"].version else forms


def check_memory(makes: Sequence[LoadSpec]) -> None:
    """Raise TooLittleMemory unless all weights fit in what is free, each file's counted once."""
    sizes = {making.path: making.memory for making in makes if making.on_this_memory}
    free = devices.free_memory()
    if sizes and (needed := sum(sizes.values()) + devices.SPARE) > free:
        raise TooLittleMemory(" and ".join(making.model.name for making in makes), needed, free)


def decoding_spec(text: str) -> Spec:
    """Return the decoding that is asked for; raises UnknownName and BadValue."""
    name = text.partition(":")[0]
    if name not in plugins.names("decodings"):
        raise UnknownName(
            f"There is no decoding called `{name}`", name, [STANDARD, *plugins.names("decodings")]
        )
    return plugins.parse("decodings", text)


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


def serving(part: Spec, engine: Spec) -> Spec:
    """Return `engine` with the options that `part` needs of it; raises BadValue where they cannot be had."""
    needed = part.part.made_by.needs(**part.options)
    for name, value in needed.items():
        if name not in engine.part.settings:
            able = [other for other in plugins.parts("engines").values() if name in other.settings]
            shown = ", ".join(f"`--engine {other.name}`" for other in able if other.name != "toy")
            raise BadValue(
                f"`{part.name}` needs an engine with `{name}`, which `{engine.name}` does not have",
                f"Choose one that has it: {shown}",
            )
        if engine.options.get(name, value) != value:
            raise BadValue(
                f"`{part}` needs `{name}={value}` and `{engine}` has another", f"Leave `{name}` out there"
            )
    return with_options(engine, **needed)


class DraftPlan(NamedTuple):
    """Who guesses: the drafter, the model that it runs on an engine, and whether that has other tokens."""

    spec: Spec
    making: LoadSpec | None = None
    foreign: bool = False

    def translation(self, target: Model) -> list[Translation]:
        """Return what a drafter that translates is given more than others."""
        translates = self.spec.part.made_by.translates
        if self.making is None or translates == "never" or (translates == "if needed" and not self.foreign):
            return []
        speakers = [
            translation.Speaker(model.name, model.tokenizer(), model.stop_tokens(), model.first_tokens())
            for model in (target, self.making.model)
        ]
        return [translation.between(*speakers)]


def same_vocabulary(one: Model, other: Model) -> bool:
    """Tell whether the tokens of one model mean the same to the other; the same file saves comparing."""
    digests = [model.manifest.digests.get("tokenizer.json") for model in (one, other)]
    if digests[0] is not None and digests[0] == digests[1]:
        return True
    return vocabulary.first_difference(one.tokenizer(), other.tokenizer()) is None


def find_draft(
    choice: Choice, target: Model, engine: Spec, library: Library, progress: Progress
) -> DraftPlan:
    """Return the drafter that is asked for, with its model.

    `auto` is the hybrid drafter, with a draft built for the target or the catalogue's pair when one is on
    disk. A text that names no part is a model's name: the hybrid drafter with that model. The draft runs on
    the target's `engine` unless it asks for another. Raises VocabularyMismatch for a draft with another
    vocabulary and a drafter that does not translate.
    """
    text = choice.draft
    if text == OFF or choice.decoding != STANDARD:
        return DraftPlan(plugins.parse("drafters", OFF_PART))
    if text == AUTO:
        draft = _suitable(target, engine, library, progress)
        return (
            _hybrid(target, draft, engine, progress)
            if draft
            else DraftPlan(plugins.parse("drafters", HYBRID))
        )
    if text.partition(":")[0] in plugins.names("drafters"):
        return _named(plugins.parse("drafters", text), target, engine, library, progress)
    try:
        found = library.resolve(text, progress, engine.part.made_by.forms)
    except UnknownModel as error:
        near = [*plugins.names("drafters"), *(model.name for model in library.all())]
        raise UnknownName(f"There is no drafter or model called `{text}`", text, near) from error
    return _hybrid(target, found, engine, progress)


def _suitable(target: Model, engine: Spec, library: Library, progress: Progress) -> Model | None:
    """Return the draft that was made for the target, else the catalogue's pair, if one is here and sound."""
    pair = library.find(target.draft) if target.draft else None
    verdict = probes.read(LoadSpec(engine, target).key).get("drafts", {})
    for found in [*library.drafts_for(target), *([pair] if pair else [])]:
        if not any(map(found.files_in, engine.part.made_by.forms)):
            continue
        if verdict.get(found.name, {}).get("same", True):
            return found
        progress.say(f"`{found.name}` is left out: `localspec doctor` saw it change the text")
    if target.draft and pair is None:
        _hint(target, progress)
    return None


def _hint(target: Model, progress: Progress) -> None:
    """Say once for a model which draft would help."""
    key = probes.key("hint", target.name)
    if not probes.read(key):
        probes.add(key, draft=target.draft)
        progress.say(f"hint: A draft makes `{target.name}` faster; `--draft {target.draft}` fetches it")


def _named(spec: Spec, target: Model, engine: Spec, library: Library, progress: Progress) -> DraftPlan:
    """Return a drafter that is named, with the model that its options name."""
    if not spec.options.get("name"):
        return DraftPlan(spec)
    own = _draft_engine(engine, spec.options)
    found = library.resolve(spec.options["name"], progress, own.part.made_by.forms)
    same, translates = same_vocabulary(target, found), spec.part.made_by.translates
    if not same and translates == "never":
        vocabulary.check_same(target.tokenizer(), found.tokenizer(), target.name, found.name)
    if same and translates == "always":
        progress.say(f"`{found.name}` writes the tokens of `{target.name}`: `model` does it for less")
    return DraftPlan(spec, LoadSpec(own, found), not same)


def _hybrid(target: Model, found: Model, engine: Spec, progress: Progress) -> DraftPlan:
    """Return the hybrid drafter with the model `found`."""
    same = same_vocabulary(target, found)
    if not same:
        progress.say(f"`{found.name}` writes other tokens than `{target.name}`: its guesses are translated")
    spec = Spec(plugins.part("drafters", HYBRID), {"name": found.name})
    return DraftPlan(spec, LoadSpec(engine, found), not same)


def _draft_engine(target: Spec, asked: Mapping[str, Any]) -> Spec:
    """Return the target's engine, or the one that the draft names, with the draft's device and threads."""
    spec = plugins.parse("engines", asked["runs"]) if asked.get("runs") else target
    return with_options(spec, device=asked.get("device") or None, threads=asked.get("threads") or None)
