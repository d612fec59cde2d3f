"""`localspec parts`: list the parts to choose from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import console

if TYPE_CHECKING:
    from localspec.plugins import Part

HELP = "List engines, drafters, draft-length policies, verifiers and all other parts, with their options."
EPILOG = "Example: localspec parts --json"


def parts(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print every part with its summary and its options."""
    from localspec import plugins  # imports numpy, which would slow `--help` down

    values = {
        kind: [part_values(plugins.part(kind, name)) for name in plugins.offered(kind)]
        for kind in plugins.KINDS
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
