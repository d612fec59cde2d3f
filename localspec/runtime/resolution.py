"""Resolution: from a model's name and a choice to the parts to load, and the reasons."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from localspec import devices, plugins
from localspec.errors import BadValue, UnsupportedModel
from localspec.library import Library, Progress, StoredModel
from localspec.library.catalogue import PIPO
from localspec.library.importing import refusals
from localspec.plugins import Spec
from localspec.runtime import diffusion, pictures
from localspec.runtime.choice import AUTO, OFF, STANDARD, Choice, decoding_spec, engine_spec, having, serving
from localspec.runtime.drafts import DIFFUSION, DraftPlan, addons_for, draft_cost, find_draft, model_named
from localspec.runtime.engine_race import race
from localspec.runtime.loading import LoadSpec, forms_of, only_graph
from localspec.state import tuned

SMALLER = ("torch:weights=int8", "torch:weights=int4")  # than what `auto` loads, which rounds nothing further


@dataclass(frozen=True, slots=True)
class Resolution:
    """The parts to load for a request, and the reasons.

    `target` is the model on its engine, `engine_reason` why that engine. `tuned_speedup` is how many times as
    fast as the default the choice was, None if `localspec tune` did not make it. `off_reason` is why the
    user's choice runs without a draft, None if it has one. `sampler` fills in blocks of a diffusion model.
    """

    target: LoadSpec
    engine_reason: str
    draft: DraftPlan
    draft_length: Spec
    verifier: Spec
    decoding: Spec | None = None
    tuned_speedup: float | None = None
    off_reason: str | None = None
    sampler: Spec | None = None


def resolve(name: str, choice: Choice, library: Library, progress: Progress) -> Resolution:
    """Decide what to load for the model called `name`, downloading it if it is missing.

    Raises UnknownModel, UnknownName and BadValue for a wrong choice, UnknownDevice for a device that does not
    exist, UnsupportedModel and BrokenModel for a model that no engine reads, NetworkError and StorageError.
    """
    decoding = None if choice.decoding == STANDARD else decoding_spec(choice.decoding)
    choice, speedup, model = _tuned(name, choice, library, progress)
    verifier = plugins.parse("verifiers", choice.verifier)
    if decoding is None:
        choice = choice.with_drafter()
        _warn(verifier, progress)
    engine, reason, model = find_engine(name, choice, library, progress, model)
    diffusion.check_choice(choice, model)
    pictures.check_choice(choice, model)
    sampler = diffusion.sampler_for(choice, model)
    draft = find_draft(choice, model, engine, library, progress)
    diffusion.check_draft(draft, model)
    off = "it was switched off" if choice.draft == OFF else diffusion.off_reason(choice, model)
    if sampler and (changed := diffusion.warning(sampler, draft.spec)):
        progress.say(changed)
    if choice.vision_tokens:
        progress.say(
            f"`--vision-tokens {choice.vision_tokens}` writes another text than the full model: most of a "
            "picture's tokens sit out layers"
        )
    if decoding:
        off = off or f"{decoding.part.made_by.title} writes a text of its own"
        draft = draft._replace(needs=addons_for(decoding, model, library))
    spec = pictures.seeing(serving(decoding or draft.spec, engine, **draft.needs), choice)
    if slow := spec.part.made_by.warning(**spec.options):
        progress.say(slow)
    return Resolution(
        target=LoadSpec(spec, model),
        engine_reason=reason,
        draft=draft,
        draft_length=plugins.parse("draft_length", choice.draft_length),
        verifier=verifier,
        decoding=decoding,
        tuned_speedup=speedup,
        off_reason=off,
        sampler=sampler,
    )


def _warn(verifier: Spec, progress: Progress) -> None:
    """Say so if a verifier changes the text."""
    if not verifier.part.made_by.lossless:
        progress.say(
            f"`--verifier {verifier.name}` changes the text: it accepts tokens that the model has not seen;"
            f" `--verifier {Choice().verifier}` does not"
        )


def _tuned(
    name: str, choice: Choice, library: Library, progress: Progress
) -> tuple[Choice, float | None, StoredModel | None]:
    """Return the tuned choice for a model and its speed-up, else `choice`; and the model if resolved."""
    if not choice.tuned:
        return choice, None, None
    choice = replace(choice, tuned=False)
    model = library.resolve(name, progress, _formats(devices.choose().engine))
    known = tuned.read(model)
    if known is None:
        return choice, None, model
    better = _choice_of(known["choice"])
    if better is None:
        progress.say("The tuned setting is of another version: using the defaults; `tune` searches again")
        return choice, None, model
    draft = model_named(better.draft)
    if draft and library.find(draft) is None:
        progress.say(
            f"The tuned draft `{draft}` is gone: using the defaults; `localspec tune` searches again"
        )
        return choice, None, model
    return better, known["speedup"], model


def _choice_of(values: dict[str, Any]) -> Choice | None:
    """Return the choice that was kept, None if this version has other fields or parts."""
    try:
        choice = Choice(**values)
        choice.check()
    except Exception:  # a kept file may hold anything
        return None
    return choice


def find_engine(
    name: str, choice: Choice, library: Library, progress: Progress, model: StoredModel | None = None
) -> tuple[Spec, str, StoredModel]:
    """Return the engine for the model called `name`, why that one, and the model.

    `auto` is what `devices.choose` says, and on the CPU the faster of OpenVINO and llama.cpp if both can run
    the model (engine_race.py). `model` saves resolving the name again if it was resolved for the default
    engine.
    """
    if choice.engine != AUTO:
        spec = engine_spec(choice.engine, choice.device, choice.threads)
        model = library.resolve(name, progress, forms_of(spec))
        diffusion.check_engine(model, spec)
        pictures.check_engine(spec, model)
        seen = model.sees and spec.name == pictures.GRAPH
        return spec, f"it was chosen; {pictures.EYES}" if seen else "it was chosen", model
    chosen = devices.choose(choice.device)
    if model is None or choice.device is not None:
        engine = pictures.ALL if choice.vision_tokens else chosen.engine
        model = library.resolve(name, progress, _formats(engine))
    if model.is_diffusion:
        own = engine_spec(DIFFUSION, choice.device and choice.device.lower(), choice.threads)
        return own, "it is a diffusion language model", model
    if model.sees:
        return *pictures.engine_for(choice, chosen, model), model
    if chosen.engine == "torch" and choice.device is None:
        chosen, model = _on_torch(chosen, name, model, library, progress)
    default = plugins.part("engines", chosen.engine).settings["device"].default
    device = choice.device or (None if chosen.device == default else chosen.device)
    if chosen.engine == "openvino" and model.files_in("openvino") is None:
        return _without_graph(choice, model, progress), "OpenVINO cannot read the model", model
    spec = engine_spec(chosen.engine, device, choice.threads)
    runners = _runners(spec, choice, model, library)
    if len(runners) < 2:
        return spec, chosen.reason, model
    verdict = race(runners, progress)
    return verdict.winner.spec, "; ".join(filter(None, [chosen.reason, verdict.reason])), model


def _on_torch(
    chosen: devices.Chosen, name: str, model: StoredModel, library: Library, progress: Progress
) -> tuple[devices.Chosen, StoredModel]:
    """Return the card that was chosen, or another device if torch cannot run the model there."""
    if reason := _torch_refusal(model):
        other = devices.choose(fits=lambda device: device.engine != "torch")
        chosen = devices.Chosen(other.engine, other.device, "torch cannot read the model")
        progress.say(f"`{model.name}` does not run on torch: {reason}")
        return chosen, library.resolve(name, progress, _formats(chosen.engine))
    fitting = _fitting(engine_spec("torch", chosen.device), model)
    if fitting == chosen:
        return chosen, model
    for form in SMALLER:
        spec = engine_spec(form, chosen.device)
        with suppress(UnsupportedModel):
            if _fitting(spec, model) == chosen:
                progress.say(f"`{model.name}` fits {chosen.device} in fewer bits: `--engine {spec}`")
                break
    return fitting, library.resolve(name, progress, _formats(fitting.engine))


def _torch_refusal(model: StoredModel) -> str | None:
    """Return why torch cannot run a model with plain weights, None if it can."""
    from localspec.formats.graph.architecture import gguf_refusal

    if only_graph(model):
        ways = " or ".join(f"`--engine {form}`" for form in SMALLER)
        return f"it is only an OpenVINO graph, which {ways} reads"
    path = model.path_for("torch", plugins.part("engines", "torch").made_by.forms)
    return gguf_refusal(path) if path.is_file() else None


def _fitting(spec: Spec, model: StoredModel) -> devices.Chosen:
    """Return the best device with room for the model as `spec` would load it."""
    needed = LoadSpec(spec, model).memory + devices.ENGINE_OVERHEAD
    return devices.choose(fits=lambda device: device.free is None or needed < device.free)


def _without_graph(choice: Choice, model: StoredModel, progress: Progress) -> Spec:
    """Return the engine for a model that OpenVINO cannot read, and say so.

    Raises UnsupportedModel with OpenVINO's reason if no installed engine can.
    """
    reason, device, threads = refusals.reason(model.manifest), choice.device, choice.threads
    if model.files_in("gguf") and devices.LIBRARIES["llamacpp"].version:
        spec = engine_spec("llamacpp", device, threads)
    elif model.files_in("safetensors") and devices.LIBRARIES["torch"].version:
        spec = engine_spec("torch", device and device.lower(), threads)
    else:
        missing = devices.LIBRARIES["llamacpp" if model.files_in("gguf") else "torch"]
        raise UnsupportedModel(reason, f"Another engine may support it: {missing.install}")
    progress.say(f"`{model.name}` runs on {spec.name}, because OpenVINO cannot read it: {reason}")
    return spec


def _runners(
    default: Spec, choice: Choice, model: StoredModel, library: Library
) -> dict[LoadSpec, float | None]:
    """Return the engines that can run the model and what was chosen on the CPU, the default first.

    Each comes with the cost of a guess there, as `race` takes it.
    """
    specs = [default]
    on_cpu = default.name == "openvino" and default.options.get("device", "CPU") == "CPU"
    if on_cpu and devices.LIBRARIES["llamacpp"].version and model.files_in("gguf"):
        other = engine_spec("llamacpp", threads=choice.threads)
        specs += [other] if _serves(other, choice, library) else []
    return {LoadSpec(spec, model): draft_cost(choice, model, spec, library) for spec in specs}


def _serves(engine: Spec, choice: Choice, library: Library) -> bool:
    """Return whether the engine can run the decoding and the draft of `choice`."""
    try:
        if choice.decoding != STANDARD:
            serving(decoding_spec(choice.decoding), engine)
        if choice.draft.partition(":")[0] in plugins.names("drafters"):
            drafter = plugins.parse("drafters", choice.draft)
            serving(drafter, engine)
            if PIPO in drafter.part.made_by.kinds:  # it runs on the target's engine too
                having(engine, drafter, pairs="")
    except BadValue:
        return False
    name = model_named(choice.draft)
    draft = library.find(name) if name else None
    return draft is None or any(map(draft.files_in, forms_of(engine)))


def _formats(engine: str) -> tuple[str, ...]:
    """Return the formats that suit an engine chosen by `auto`, and those of engines that stand in for it."""
    formats: tuple[str, ...] = plugins.part("engines", engine).made_by.forms
    if engine != "openvino":
        return formats
    others = {"gguf": "llamacpp", "safetensors": "torch"}
    return (*formats, *(form for form, other in others.items() if devices.LIBRARIES[other].version))
