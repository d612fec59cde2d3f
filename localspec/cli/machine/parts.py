"""`localspec parts`: list the parts to choose from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import completion, console
from localspec.errors import UnknownName

if TYPE_CHECKING:
    from localspec.plugins import Part

HELP = """List engines, drafters, draft-length policies, verifiers and all other parts, with their options.

With a KIND, such as `samplers`, only those."""
EPILOG = """Examples:

  localspec parts samplers

  localspec parts --json"""


def parts(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="Kind of parts.", autocompletion=completion.kinds, metavar="KIND", show_default="all"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print every part, or those of a kind, with their summaries and options; raises UnknownName."""
    from localspec import plugins  # imports numpy, which would slow `--help` down

    if kind is not None and kind not in plugins.KINDS:
        raise UnknownName(f"Unknown kind of parts `{kind}`", kind, plugins.KINDS)
    values = {
        shown: [part_values(plugins.part(shown, name)) for name in plugins.offered(shown)]
        for shown in ([kind] if kind else plugins.KINDS)
    }
    if as_json:
        console.print_json(values, indent=2)
        return
    console.print_text(
        "\n\n".join("\n".join([kind, *map(format_part, known)]) for kind, known in values.items())
    )


def part_values(part: Part) -> dict[str, Any]:
    """Return a part's name, summary and options as plain values."""
    options = [
        {
            "name": setting.name,
            "type": setting.type.__name__,
            "required": setting.required,
            "default": None if setting.required else setting.default,
            "help": setting.option.help,
            "choices": list(setting.option.choices),
        }
        for setting in part.settings.values()
    ]
    return {"name": part.name, "summary": part.summary, "options": options}


def format_part(part: dict[str, Any]) -> str:
    """Return the lines of one part."""
    lines = [f"  {part['name']:<12} {part['summary']}"]
    for option in part["options"]:
        default = f"{option['name']}={'...' if option['required'] else option['default']}"
        choices = f" ({', '.join(option['choices'])})" if option["choices"] else ""
        lines.append(f"      {default:<20} {option['help']}{choices}")
    return "\n".join(lines)
