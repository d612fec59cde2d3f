"""The user's choice of parts, and the specs of parts that it stands for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from localspec import plugins
from localspec.core.sampler import Sampling
from localspec.drafting.tiers import EXIT
from localspec.errors import BadValue, UnknownName
from localspec.pictures import schedule
from localspec.plugins import Spec

AUTO, OFF, OFF_PART, HYBRID = "auto", "off", "none", "hybrid"
VISION_TOKENS = "vision_tokens"  # the option of engines in which visual tokens sit out layers
STANDARD = "standard"  # plain decoding


@dataclass(frozen=True, slots=True)
class Choice:
    """Which parts to use, as texts such as `ngram:longest=4`. Device and threads are the engine's.

    The engine `auto` is the one that suits the machine and the model. A `decoding` other than `standard`
    writes a text of its own. A `sampler` fills in the blocks of a diffusion model, None is its default.
    `vision_tokens` says how many of a picture's tokens run in which layers; by default all do.
    `tuned` allows a setting that `localspec tune` found to replace this one.
    """

    engine: str = AUTO
    draft: str = AUTO
    draft_length: str = "adaptive"
    verifier: str = "exact"
    device: str | None = None
    threads: int | None = None
    decoding: str = STANDARD
    tuned: bool = False
    sampler: str | None = None
    vision_tokens: str = ""

    def or_tuned(self) -> Choice:
        """Return the choice, which a tuned setting may replace if it is the default in everything."""
        return replace(self, tuned=self == Choice())

    def check(self) -> None:
        """Raise UnknownName or BadValue for a wrong part or option, before anything is loaded."""
        engine = None if self.engine == AUTO else engine_spec(self.engine, self.device, self.threads)
        self._check_vision_tokens(engine)
        plugins.parse("draft_length", self.draft_length)
        plugins.parse("verifiers", self.verifier)
        if self.sampler is not None:
            plugins.parse("samplers", self.sampler)
        if self.decoding != STANDARD:
            self._check_decoding(engine)
            return
        text = self.with_drafter().draft
        if text.partition(":")[0] in plugins.names("drafters"):
            draft = plugins.parse("drafters", text)
            draft.part.made_by.needs(**draft.options)
            if engine:
                serving(draft, engine)

    def with_drafter(self) -> Choice:
        """Return the choice with the drafter that its verifier needs, which gets the verifier's options.

        Raises BadValue for another drafter, for none, and for options that contradict each other.
        """
        verifier = plugins.parse("verifiers", self.verifier)
        wanted, name = verifier.part.made_by.drafter, self.draft.partition(":")[0]
        if not wanted:
            return self
        own = f"{wanted}:middle={EXIT}"
        if self.draft in (OFF, OFF_PART):
            raise BadValue(f"`--verifier {verifier}` does nothing without a draft", "Leave out `--draft`")
        if name in plugins.names("drafters") and name != wanted:
            raise BadValue(
                f"`--verifier {verifier.name}` needs the drafter `{wanted}`", f"Give `--draft {own}`"
            )
        text = own if self.draft == AUTO else self.draft if name == wanted else f"{own},name={self.draft}"
        draft = plugins.parse("drafters", text)
        for option, value in verifier.options.items():
            if draft.options.get(option, value) != value:
                raise BadValue(f"`{draft}` and `{verifier}` differ in `{option}`", "Give it once")
        return replace(self, draft=str(Spec(draft.part, draft.options | verifier.options)))

    def _check_vision_tokens(self, engine: Spec | None) -> None:
        """Raise BadValue for a wrong schedule, or an engine in which no visual token sits out layers."""
        schedule.parse(self.vision_tokens)
        if engine and self.vision_tokens and VISION_TOKENS not in engine.part.settings:
            raise BadValue(
                f"`--vision-tokens` does nothing on `{engine.name}`, where all visual tokens run",
                "Type `--engine torch`, or leave `--engine` out",
            )

    def _check_decoding(self, engine: Spec | None) -> None:
        """Raise UnknownName or BadValue for an unknown decoding, or one beside parts that it does not use."""
        decoding, default = decoding_spec(self.decoding), Choice()
        for name in ("draft", "draft_length", "verifier"):
            if getattr(self, name) not in (getattr(default, name), OFF):
                option = f"--{name.replace('_', '-')}"
                raise BadValue(
                    f"`{option}` does nothing beside `--decoding {decoding}`, which runs without a draft",
                    f"Leave `{option}` out",
                )
        if engine:
            serving(decoding, engine)


def decoding_spec(text: str) -> Spec:
    """Return the decoding that `text` names; raises UnknownName and BadValue."""
    name = text.partition(":")[0]
    if name not in plugins.names("decodings"):
        raise UnknownName(f"Unknown decoding `{name}`", name, [STANDARD, *plugins.names("decodings")])
    return plugins.parse("decodings", text)


def engine_spec(text: str, device: str | None = None, threads: int | None = None) -> Spec:
    """Return an engine with its device and threads; raises BadValue for one that takes neither."""
    return with_options(plugins.parse("engines", text), device=device, threads=threads)


def with_options(spec: Spec, **values: Any) -> Spec:
    """Return `spec` with the options that are not None; raises BadValue if the part has no such option."""
    options = dict(spec.options)
    for name, value in values.items():
        if value is None:
            continue
        if name not in spec.part.settings:
            raise BadValue(f"`{spec.name}` has no option called `{name}`", f"Leave `{name}` out")
        options[name] = spec.part.settings[name].parse(str(value), spec.name)
    return Spec(spec.part, options)


def serving(part: Spec, engine: Spec, **more: Any) -> Spec:
    """Return `engine` with the options that `part` needs; raises BadValue if it does not have them.

    `more` are those that its draft model needs besides.
    """
    return having(engine, part, **part.part.made_by.needs(**part.options) | more)


def having(engine: Spec, part: Spec, **needed: Any) -> Spec:
    """Return `engine` with options that `part` needs; raises BadValue if it does not have them."""
    for name, value in needed.items():
        if name not in engine.part.settings:
            engines = [plugins.part("engines", other) for other in plugins.offered("engines")]
            shown = ", ".join(f"`--engine {other.name}`" for other in engines if name in other.settings)
            raise BadValue(
                f"`{part.name}` needs an engine with `{name}`, which `{engine.name}` does not have",
                f"Choose one that has it: {shown}",
            )
        if value is not None and engine.options.get(name, value) != value:
            raise BadValue(
                f"`{part}` needs `{name}={value}`, which `{engine}` contradicts", f"Leave `{name}` out there"
            )
    return with_options(engine, **needed)


def sampling_of(defaults: dict[str, Any], asked: dict[str, Any]) -> Sampling:
    """Return the sampling settings that a user gave, completed with the model's defaults.

    `defaults` is the model's generation config, `asked` what the user set. Temperature 0 is greedy and drops
    the other defaults, except the repetition penalty.
    """
    chosen = dict(defaults)
    sampled = chosen.pop("do_sample", False)
    if not sampled:
        chosen = {name: chosen[name] for name in chosen if name == "repetition_penalty"}
    elif "temperature" not in chosen:
        chosen["temperature"] = 1.0
    chosen |= asked
    if not chosen.get("temperature"):
        _refuse_idle(asked)
        chosen = {name: chosen[name] for name in chosen if name not in ("top_k", "top_p", "min_p")}
    return Sampling(**chosen)


def _refuse_idle(asked: dict[str, Any]) -> None:
    for name in ("top_k", "top_p", "min_p"):
        if name in asked:
            shown = name.replace("_", "-")
            raise BadValue(
                f"`--{shown}` does nothing at temperature 0, which takes the most likely token",
                f"Type `--temperature 0.7` beside it, or leave `--{shown}` out",
            )
