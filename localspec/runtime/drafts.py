"""Which drafter to use, and which draft model it runs on which engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from localspec import plugins
from localspec.disk import given
from localspec.drafting import skip_mask
from localspec.drafting.tiers import EXIT, MASK, MIDDLE
from localspec.errors import BadValue, UnknownModel, UnknownName
from localspec.library import Library, Progress, StoredModel
from localspec.library.catalogue import HEAD, K_FORCING, PIPO
from localspec.plugins import Spec
from localspec.runtime.choice import AUTO, HYBRID, OFF, OFF_PART, STANDARD, Choice, having, with_options
from localspec.runtime.loading import LoadSpec, forms_of
from localspec.state import probes, skip_masks

DIFFUSION = "diffusion"  # an engine, the drafter that runs its models, and their kind
# An engine's options: the folders of what passes read, by the kinds of these.
ADDONS = {"hints": K_FORCING, "pairs": PIPO}
TAPS = "taps"  # an engine's option: the layers whose hidden states a head reads

if TYPE_CHECKING:
    from localspec.formats.tokenizer.token_bytes import Translation

FIRST_LAYERS = 5 / 6  # of a target's layers: its exit for a middle tier


class DraftPlan(NamedTuple):
    """A drafter, the draft model that it runs, and whether that model has another vocabulary.

    `middle` is the model that checks its guesses before the target does, if that is one of its own. `needs`
    are the options that the target's engine must have for the draft model.
    """

    spec: Spec
    load: LoadSpec | None = None
    foreign: bool = False
    middle: LoadSpec | None = None
    needs: Mapping[str, Any] = {}

    @property
    def loads(self) -> list[LoadSpec]:
        """The models beside the target."""
        return [load for load in (self.load, self.middle) if load is not None]

    @property
    def is_head(self) -> bool:
        """Whether the model is a head, which reads the target's hidden states."""
        return self.load is not None and self.load.model.kind == HEAD

    def translation(self, target: StoredModel) -> Translation | None:
        """Return the translation between both vocabularies, None if the drafter takes none."""
        translates = self.spec.part.made_by.translates
        if self.load is None or translates == "never" or (translates == "if needed" and not self.foreign):
            return None
        from localspec.formats.tokenizer import translation

        speakers = [
            translation.ModelTokenizer(
                model.name, model.tokenizer(), model.stop_tokens(), model.first_tokens()
            )
            for model in (target, self.load.model)
        ]
        return translation.build_translation(*speakers)


def find_draft(
    choice: Choice, target: StoredModel, engine: Spec, library: Library, progress: Progress
) -> DraftPlan:
    """Return the drafter that `choice` names, with its draft model.

    `auto` is the hybrid drafter, with a draft built for the target or the catalogue's pair when one is on
    disk. A text that names no part is a model's name: the hybrid drafter with that model. The draft runs on
    the target's `engine` unless it asks for another. Raises VocabularyMismatch for a draft with another
    vocabulary and a drafter that does not translate.
    """
    text = choice.draft
    if text == OFF or choice.decoding != STANDARD or (target.is_diffusion and text == AUTO):
        return DraftPlan(plugins.parse("drafters", OFF_PART))
    if text == AUTO:
        draft = _suitable(target, engine, library, progress)
        if draft is None:
            return DraftPlan(plugins.parse("drafters", HYBRID))
        return _hybrid(target, draft, engine, progress)
    if text.partition(":")[0] in plugins.names("drafters"):
        spec = with_own_tier(plugins.parse("drafters", text), target, engine)
        middle = _middle_model(spec, target, engine, library, progress)
        return _named(spec, target, engine, library, progress)._replace(middle=middle)
    try:
        draft = _draft_called(text, target, engine, library, progress)
    except UnknownModel as error:
        near = [*plugins.names("drafters"), *(model.name for model in library.all())]
        raise UnknownName(f"Unknown drafter or model `{text}`", text, near) from error
    return _hybrid(target, draft, engine, progress)


def draft_cost(choice: Choice, target: StoredModel, engine: Spec, library: Library) -> float | None:
    """Return about what a guess costs relative to a pass over one token: 0 for copies and hints.

    It is None without a draft. A draft model's cost is its share of the target's bytes.
    """
    if choice.draft in (OFF, OFF_PART) or choice.decoding != STANDARD:
        return None
    if choice.draft == AUTO:
        draft = next(_candidates(target, engine, library), None)
    else:
        name = model_named(choice.draft)
        draft = library.find(name) if name else None
    if draft and draft.kind == K_FORCING:
        return 0.0
    if draft and draft.kind == PIPO:
        return 0.5  # a pass of the target gives two guesses
    return LoadSpec(engine, draft).memory / LoadSpec(engine, target).memory if draft else 0.0


def model_named(text: str) -> str | None:
    """Return the model that a draft of `Choice` names, None if it names none."""
    if text in (AUTO, OFF):
        return None
    if text.partition(":")[0] not in plugins.names("drafters"):
        return text
    name: str | None = plugins.parse("drafters", text).options.get("name")
    return name or None


def _suitable(target: StoredModel, engine: Spec, library: Library, progress: Progress) -> StoredModel | None:
    """Return the draft built for the target, else the catalogue's pair, if one is on disk and sound."""
    checked = probes.read(LoadSpec(engine, target).key).get("drafts", {})
    for draft in _candidates(target, engine, library):
        if checked.get(draft.name, {}).get("same", True):
            return draft
        progress.say(f"`{draft.name}` is not used: `localspec doctor` saw it change the text")
    if target.draft and library.find(target.draft) is None:
        _hint(target, progress)
    return None


def _candidates(target: StoredModel, engine: Spec, library: Library) -> Iterator[StoredModel]:
    """Yield the heads trained and the drafts built for the target, then the catalogue's pair.

    Those that the engine cannot read here are left out.
    """
    pair = library.find(target.draft) if target.draft else None
    built = sorted(library.drafts_for(target), key=lambda draft: draft.kind != HEAD)
    for draft in [*built, *([pair] if pair else [])]:
        readable = draft.kind != HEAD or TAPS in engine.part.settings
        if readable and any(map(draft.files_in, forms_of(engine))):
            yield draft


def _hint(target: StoredModel, progress: Progress) -> None:
    """Say once per model which draft would help."""
    key = probes.key("hint", target.name)
    if not probes.read(key):
        probes.add(key, draft=target.draft)
        progress.say(f"hint: A draft makes `{target.name}` faster; `--draft {target.draft}` downloads it")


def _named(spec: Spec, target: StoredModel, engine: Spec, library: Library, progress: Progress) -> DraftPlan:
    """Return a drafter with the draft model that its options name."""
    if not spec.options.get("name"):
        return DraftPlan(spec)
    if K_FORCING in spec.part.made_by.kinds:
        return DraftPlan(spec, needs=addons_for(spec, target, library))
    if PIPO in spec.part.made_by.kinds:
        from localspec.library.importing import addons

        folder = str(addons.folder_of(PIPO, spec.options["name"], target, library))
        return DraftPlan(spec, LoadSpec(having(engine, spec, pairs=folder), target))
    own = _draft_engine(engine, spec.name, spec.options)
    draft = _draft_called(spec.options["name"], target, own, library, progress)
    _check_kind(spec, draft)
    if draft.kind == HEAD:
        return _with_head(spec, target, own, draft)
    same, translates = same_vocabulary(target, draft), spec.part.made_by.translates
    if not same and translates == "never":
        from localspec.formats.tokenizer import vocabulary

        vocabulary.check_same(target.tokenizer(), draft.tokenizer(), target.name, draft.name)
    if same and translates == "always":
        progress.say(
            f"`{draft.name}` has the vocabulary of `{target.name}`: `draft_model` drafts at a lower cost"
        )
    return DraftPlan(spec, LoadSpec(own, draft), not same)


def addons_for(part: Spec, target: StoredModel, library: Library) -> dict[str, Any]:
    """Return the engine's options for the hints or pairs that a drafter or a decoding names, if any."""
    from localspec.library.importing import addons

    named = part.part.made_by.needs(**part.options)
    return {
        option: str(addons.folder_of(kind, named[option], target, library))
        for option, kind in ADDONS.items()
        if option in named
    }


def with_own_tier(spec: Spec, target: StoredModel, engine: Spec) -> Spec:
    """Return a drafter with the layer or the mask that stands for a middle tier of the target.

    `exit` is the engine's exit, else after five of six layers; `mask` is what `localspec find-mask` kept.
    Raises BadValue where neither is known.
    """
    middle, name = spec.options.get(MIDDLE), target.name
    if middle == EXIT:
        layers = target.layer_count()
        exit = engine.options.get("exit") or min(max(round(FIRST_LAYERS * layers), 1), layers - 1)
        if exit < 1:
            raise BadValue(f"`{name}` has no layer to exit after that is known", "Give one: `middle=20`")
        middle = str(exit)
    elif middle == MASK:
        middle = skip_masks.read(target)
        if middle is None:
            raise BadValue(f"No mask of `{name}` is known", f"Type `localspec find-mask {name}`")
    return Spec(spec.part, spec.options | {MIDDLE: middle}) if middle else spec


def _middle_model(
    spec: Spec, target: StoredModel, engine: Spec, library: Library, progress: Progress
) -> LoadSpec | None:
    """Return the model that an option `middle` names, None for a tier within the target."""
    name = spec.options.get(MIDDLE)
    if not name or name.isdigit() or skip_mask.is_mask(name):
        return None
    from localspec.formats.tokenizer import vocabulary

    own = _draft_engine(engine, spec.name, spec.options)
    model = library.resolve(name, progress, forms_of(own))
    vocabulary.check_same(target.tokenizer(), model.tokenizer(), target.name, model.name)
    return LoadSpec(own, model)


def _hybrid(target: StoredModel, draft: StoredModel, engine: Spec, progress: Progress) -> DraftPlan:
    """Return the hybrid drafter with the model `draft`."""
    spec = Spec(plugins.part("drafters", HYBRID), {"name": draft.name})
    _check_kind(spec, draft)
    if draft.kind == HEAD:
        return _with_head(spec, target, engine, draft)
    same = same_vocabulary(target, draft)
    if not same:
        progress.say(
            f"`{draft.name}` has another vocabulary than `{target.name}`: its guesses are translated"
        )
    return DraftPlan(spec, LoadSpec(engine, draft), not same)


def _draft_called(
    name: str, target: StoredModel, engine: Spec, library: Library, progress: Progress
) -> StoredModel:
    """Return the draft model that `name` means: a model or a head, which is imported for the target."""
    from localspec.formats.heads import layout

    folder = Path(name)
    if library.find(name) is None and given.exists(name) and layout.is_head(folder):
        from localspec.library.importing import heads

        return heads.imported(library, folder, target, progress)
    return library.resolve(name, progress, forms_of(engine), kind=None)


def _check_kind(spec: Spec, draft: StoredModel) -> None:
    """Raise BadValue for a kind of model that a drafter does not run."""
    kinds, kind = spec.part.made_by.kinds, DIFFUSION if draft.is_diffusion else draft.kind
    if kind not in kinds:
        known = [name for name, part in plugins.parts("drafters").items() if kind in part.made_by.kinds]
        drafts = [name for name in known if "name" in plugins.part("drafters", name).settings]
        raise BadValue(
            f"`{spec.name}` runs a model of {' or '.join(kinds)}, and `{draft.name}` is one of {kind}",
            f"Type `--draft {drafts[0]}:name={draft.name}`" if drafts else "Name another model",
        )


def _with_head(spec: Spec, target: StoredModel, engine: Spec, draft: StoredModel) -> DraftPlan:
    """Return a drafter with a head; raises UnsupportedModel and BrokenModel unless it fits the target."""
    from localspec.library.importing import heads

    shape = heads.check_fits(draft, target)
    if "target" in engine.part.settings:  # it shares the target's embedding
        engine = with_options(engine, target=str(target.path_for(engine.name, forms_of(engine))))
    return DraftPlan(spec, LoadSpec(engine, draft), needs={TAPS: "-".join(map(str, shape.taps))})


def _draft_engine(target: Spec, drafter: str, options: Mapping[str, Any]) -> Spec:
    """Return the target's engine, or the one that the draft names, with the draft's device and threads.

    A diffusion draft has the engine of its kind.
    """
    spec = plugins.parse("engines", options["runs"]) if options.get("runs") else target
    if drafter == DIFFUSION and spec.name != DIFFUSION:
        spec = plugins.parse("engines", DIFFUSION)
    return with_options(spec, device=options.get("device") or None, threads=options.get("threads") or None)


def same_vocabulary(one: StoredModel, other: StoredModel) -> bool:
    """Return whether two models share a vocabulary; identical tokenizer files save the comparison."""
    from localspec.formats.tokenizer import vocabulary

    digests = [model.manifest.digests.get("tokenizer.json") for model in (one, other)]
    if digests[0] is not None and digests[0] == digests[1]:
        return True
    return vocabulary.first_difference(one.tokenizer(), other.tokenizer()) is None
