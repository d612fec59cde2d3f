"""`localspec show`: the details of a model."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import completion, console, options
from localspec.cli.drafts.format_card import card_lines, class_lines, head_lines, hint_lines, pair_lines
from localspec.cli.sizes import format_bytes
from localspec.disk import given
from localspec.errors import BrokenModel, LocalspecError, UnknownModel, UnsupportedModel, nearest

if TYPE_CHECKING:
    from localspec.library import Library, StoredModel

HELP = """Show a model of the library: its files, checksums, source and drafts.

For a model that was built here, the card is shown too: what was pruned, its cost, its agreement with the
target, and what a draft gains."""
FACTS = (
    "kind",
    "folder",
    "source",
    "revision",
    "precision",
    "weights",
    "architecture",
    "context",
    "pictures",
    "draft",
    "target",
    "dropped",
)
EPILOG = "Example: localspec show smollm2-135m --json"


def show(
    model: Annotated[str, typer.Argument(help="Name in the library.", autocompletion=completion.installed)],
    template: Annotated[bool, typer.Option("--template", help="Print only its chat template.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Print the details; raises UnknownModel for a model that is not in the library."""
    from localspec.library import Library

    library = Library()
    resolved = library.find(model)
    if resolved is None:
        raise missing_error(library, model)
    if template:
        values = template_values(resolved)
        if as_json:
            console.print_json(values)
        else:
            console.print_exact(values["template"])
        return
    details = model_details(resolved, library)
    if as_json:
        console.print_json(details)
    else:
        console.print_text(format_details(details))


def missing_error(library: Library, name: str) -> LocalspecError:
    """Return the error for a model that cannot be used: too new, incomplete or unknown."""
    from localspec.library import catalogue

    known = library.known()
    for model in known:
        if model.name == name:
            if model.manifest.newer:
                return model.manifest.newer_error()
            return BrokenModel(f"`{name}` is incomplete", f"See which files: localspec verify {name}")
    message = f"`{name}` is not in the library"
    if given.exists(name):
        return UnknownModel(message, f"Add it: localspec import {shlex.quote(name)} --name NAME")
    if catalogue.parse_name(name):
        return UnknownModel(message, f"Download it: localspec pull {name}")
    return UnknownModel(message, nearest(name, [model.name for model in known], "localspec list"))


def template_values(model: StoredModel) -> dict[str, str]:
    """Return a model's chat template as `--json` prints it; raises UnsupportedModel if it has none."""
    template = model.template()
    if template is None:
        raise UnsupportedModel(f"`{model.name}` has no chat template", "Use it with `--raw`")
    tools = {} if template.with_tools is None else {"with_tools": template.with_tools}
    return {"template": template.source, **tools}


def model_details(model: StoredModel, library: Library) -> dict[str, Any]:
    """Return a model's details as plain values; sizes are in bytes, `context` in tokens."""
    from localspec.build import card
    from localspec.formats.graph.linear import noted_form
    from localspec.library import catalogue
    from localspec.library.model import FORMATS
    from localspec.runtime.engine_race import known_costs
    from localspec.runtime.pictures import reading

    manifest = model.manifest
    return {
        "name": model.name,
        "kind": model.kind,
        "folder": str(model.folder),
        "source": manifest.source,
        "revision": manifest.revision,
        "precision": manifest.precision,
        "weights": noted_form(model.folder / "openvino_model.xml"),
        "others": catalogue.other_precisions(model.name),
        "engines": known_costs(model),
        "architecture": manifest.architecture,
        "context": manifest.context,
        "pictures": reading(model) if model.sees else None,
        "formats": [name for name in FORMATS if model.files_in(name)],
        "template": model.template() is not None,
        "draft": model.draft,
        "drafts": [draft.name for draft in library.drafts_for(model)],
        "target": manifest.target or None,
        "dropped": manifest.dropped or None,
        "card": card(model) or None,
        "history": manifest.history,
        "created": manifest.created,
        "sizes": manifest.sizes,
        "digests": manifest.digests,
    }


def format_details(values: dict[str, Any]) -> str:
    """Return the details as lines, without empty ones."""
    from localspec.runtime.engine_race import format_costs

    lines = [values["name"]]
    for key in FACTS:
        if values[key]:
            value = f"{values[key]:,} tokens" if key == "context" else values[key]
            lines.append(f"  {key:<13}{value}")
    if values["kind"] == "text":
        lines.append(f"  {'template':<13}{'its own' if values['template'] else 'none'}")
    for key in ("formats", "drafts", "others"):
        if values[key]:
            lines.append(f"  {key:<13}{', '.join(values[key])}")
    if values["engines"]:
        lines.append(f"  {'engines':<13}{format_costs(values['engines'])}")
    if values["card"]:
        shown = {"head": head_lines, "k-forcing": hint_lines, "pipo": pair_lines}.get(
            values["kind"], format_built
        )
        lines += shown(values["card"])
    for number, line in enumerate(values["history"]):
        lines.append(f"  {'' if number else 'history':<13}{line}")
    for name, size in values["sizes"].items():
        lines.append(f"  {format_bytes(size):>15}  {name}  {values['digests'].get(name, '')[:12]}")
    return "\n".join(lines)


def format_built(card: dict[str, Any]) -> list[str]:
    """Return the card of a built model: where it comes from, its facts, a table, and what a draft gains."""
    from localspec.build import no_gain

    versions = ", ".join(f"{package} {number}" for package, number in card.get("versions", {}).items())
    parent, day = card.get("parent", "another model"), card.get("date", "an unknown day")
    lines = [f"  built from {parent} on {day}" + f", with {versions}" * bool(versions)]
    healed = card.get("healed", {})
    if "before" in healed and "after" in healed:
        before, after = healed["before"], healed["after"]
        lines.append(f"  healed: {before:.1%} of guesses accepted before, {after:.1%} after")
    lines += [*card_lines(card), *class_lines(card)]
    if "target" not in card:
        return lines
    reason, what = no_gain(card), f"As a draft for {card['target']} it"
    return [*lines, f"  {what} gains nothing: {reason}" if reason else f"  {what} makes answers faster"]
