"""`localspec show`: what is known of a model on this machine."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.errors import BrokenModel, LocalspecError, UnknownModel, UnsupportedModel, suggestion

if TYPE_CHECKING:
    from localspec.library import Library, Model

HELP = """Show a model of the library: its files and digests, where it is from, its drafts.

Of a draft that was built here it shows the card: what was kept, what it costs and what it promises."""
EPILOG = "Example: localspec show smollm2-135m --json"


def show(
    model: Annotated[str, typer.Argument(help="A name of the library.")],
    template: Annotated[bool, typer.Option("--template", help="Print its chat template, as it is.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print what is known; raise UnknownModel for a name that is not here."""
    from localspec.library import Library

    library = Library()
    found = library.find(model)
    if found is None:
        raise absent(library, model)
    if template:
        values = written(found)
        sys.stdout.write(json.dumps(values, ensure_ascii=False) + "\n" if as_json else values["template"])
        return
    about = described(found, library)
    print(json.dumps(about, ensure_ascii=False) if as_json else in_words(about))


def absent(library: Library, name: str) -> LocalspecError:
    """Say why there is no whole model of that name: a newer manifest, damaged files, or no such model."""
    known = library.known()
    for one in known:
        if one.name == name:
            if one.manifest.newer:
                return one.manifest.newer_error()
            return BrokenModel(f"`{name}` is not whole", f"See what is wrong: localspec verify {name}")
    return UnknownModel(f"`{name}` is not in the library", suggestion(name, [one.name for one in known]))


def written(model: Model) -> dict[str, str]:
    """Return a model's chat template by the keys of `--json`; raises UnsupportedModel when it has none."""
    found = model.template()
    if found is None:
        raise UnsupportedModel(f"`{model.name}` has no chat template", "Prompts go in with `--raw`")
    tools = {} if found.with_tools is None else {"with_tools": found.with_tools}
    return {"template": found.source, **tools}


def described(model: Model, library: Library) -> dict[str, Any]:
    """Return what is known of a model as plain values; sizes are bytes, `context` is tokens."""
    from localspec.build import card

    about = model.manifest
    return {
        "name": model.name,
        "folder": str(model.folder),
        "source": about.source,
        "revision": about.revision,
        "precision": about.precision,
        "architecture": about.architecture,
        "context": about.context,
        "forms": [form for form in ("openvino", "gguf", "safetensors") if model.files_in(form)],
        "template": model.template() is not None,
        "draft": model.draft,
        "drafts": [draft.name for draft in library.drafts_for(model)],
        "target": about.target or None,
        "card": card(model) or None,
        "history": about.history,
        "created": about.created,
        "sizes": about.sizes,
        "digests": about.digests,
    }


def in_words(values: dict[str, Any]) -> str:
    """Return the values as lines; what is empty is left out."""
    lines = [values["name"]]
    for key in ("folder", "source", "revision", "precision", "architecture", "context", "draft", "target"):
        if values[key]:
            lines.append(f"  {key:<13}{values[key]}")
    lines.append(f"  {'template':<13}{'its own' if values['template'] else 'none'}")
    for key in ("forms", "drafts"):
        if values[key]:
            lines.append(f"  {key:<13}{', '.join(values[key])}")
    for key, value in (values["card"] or {}).items():
        lines.append(f"  {key:<13}{value}")
    lines += [f"  {'history' if not at else '':<13}{line}" for at, line in enumerate(values["history"])]
    for name, size in values["sizes"].items():
        lines.append(f"  {size:>15,}  {name}  {values['digests'].get(name, '')[:12]}")
    return "\n".join(lines)
