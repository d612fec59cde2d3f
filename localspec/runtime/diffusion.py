"""Diffusion language models: which engine, sampler and draft suit them, and what does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localspec import plugins
from localspec.core.blocks.decode import Drafting
from localspec.core.blocks.pace import FixedPace, MeasuredPace, Pace
from localspec.core.blocks.parts import BlockDrafter, check_pair, check_serves
from localspec.errors import BadValue, UnsupportedModel
from localspec.formats.diffusion import config
from localspec.plugins import Spec
from localspec.runtime.choice import AUTO, OFF_PART, Choice
from localspec.runtime.drafts import DIFFUSION, DraftPlan

if TYPE_CHECKING:
    from localspec.core.contracts import Drafter
    from localspec.library import StoredModel

SAMPLER, EXACT = "low_confidence", "left_to_right"  # the default, and that which a draft does not change
UNASKED = "no draft was named; a diffusion model fills in blocks by itself"


def check_engine(model: StoredModel, engine: Spec) -> None:
    """Raise UnsupportedModel for a diffusion model on another engine, or another model on theirs."""
    if model.is_diffusion == (engine.name == DIFFUSION):
        return
    if model.is_diffusion:
        raise UnsupportedModel(
            f"`{model.name}` is a diffusion language model, which `{engine.name}` does not run",
            f"Type `--engine {DIFFUSION}`, or leave `--engine` out",
        )
    raise UnsupportedModel(
        f"`{engine.name}` runs diffusion language models ({', '.join(config.FAMILIES)}), and "
        f"`{model.name}` is a `{model.manifest.architecture}`",
        "Leave `--engine` out",
    )


def check_choice(choice: Choice, model: StoredModel) -> None:
    """Raise BadValue for parts that do nothing for a model; checked before anything is loaded."""
    if not model.is_diffusion:
        if choice.sampler is not None:
            raise BadValue(
                f"`--sampler` is for diffusion language models, and `{model.name}` is none",
                "Leave `--sampler` out",
            )
        return
    default = Choice()
    for name in ("decoding", "verifier"):
        if (found := getattr(choice, name)) != getattr(default, name):
            raise BadValue(
                f"`--{name} {found}` does nothing for `{model.name}`, a diffusion language model",
                f"Leave `--{name}` out; `--sampler` says how it writes",
            )
    name = choice.draft.partition(":")[0]
    if name in plugins.names("drafters") and name not in (DIFFUSION, OFF_PART):
        raise BadValue(
            f"`{name}` drafts token by token, and `{model.name}` fills in blocks",
            f"Type `--draft {DIFFUSION}:name=MODEL`, or leave `--draft` out",
        )
    pace_of(plugins.parse("draft_length", choice.draft_length), stepwise=True)


def sampler_for(choice: Choice, model: StoredModel) -> Spec | None:
    """Return the sampler of a diffusion model, None for another.

    Raises UnsupportedModel for one that the model cannot serve.
    """
    if not model.is_diffusion:
        return None
    spec = plugins.parse("samplers", choice.sampler or SAMPLER)
    check_serves(spec.part.made_by, spec.name, _shape(model), model.name)
    return spec


def check_draft(plan: DraftPlan, model: StoredModel) -> None:
    """Raise BadValue for a draft model that cannot fill in the blocks of a diffusion model."""
    if model.is_diffusion and plan.load:
        check_pair(_shape(model), _shape(plan.load.model))


def _shape(model: StoredModel) -> config.DiffusionShape:
    return config.read(model.path_for(DIFFUSION, plugins.part("engines", DIFFUSION).made_by.forms))


def off_reason(choice: Choice, model: StoredModel) -> str | None:
    """Return why a diffusion model runs without a draft, None if it has one or is none."""
    return UNASKED if model.is_diffusion and choice.draft in (AUTO, OFF_PART) else None


def is_exact(sampler: Spec, draft: Spec) -> bool:
    """Return whether a draft leaves the text of a sampler as it is, in distribution."""
    if draft.name == OFF_PART:
        return True
    made_by = draft.part.made_by
    exact = issubclass(made_by, BlockDrafter) and made_by.exact_with(**draft.options)
    return bool(exact and sampler.make().sequential)


def pace_of(draft_length: Spec, *, stepwise: bool) -> Pace:
    """Return how far to draft; raises BadValue for a policy that cannot tell about blocks."""
    if draft_length.name == "fixed":
        setting = draft_length.part.settings["tokens"]
        return FixedPace(draft_length.options.get("tokens", setting.default))
    if draft_length.name == "adaptive":
        return MeasuredPace(stepwise=stepwise)
    raise BadValue(
        f"`--draft-length {draft_length}` does nothing for a diffusion language model",
        "Use `adaptive` or `fixed`",
    )


def drafting_of(drafter: Drafter, draft_length: Spec) -> Drafting | None:
    """Return what drafts for a diffusion model, None for no draft."""
    if not isinstance(drafter, BlockDrafter):
        return None
    return Drafting(drafter, pace_of(draft_length, stepwise=drafter.stepwise))


def warning(sampler: Spec, draft: Spec) -> str | None:
    """Return what to say of a draft that changes the text, None if it does not."""
    if is_exact(sampler, draft):
        return None
    return (
        f"`--draft {draft}` changes the text of `--sampler {sampler}`; with `order=left` it keeps that of "
        f"`--sampler {EXACT}`"
    )
