"""`localspec devices`: what this machine has, and which engine would be chosen."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

HELP = "Show this machine's devices, the engines that are installed, and which would be chosen and why."
EPILOG = "Example: localspec devices --json"


def devices(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the machine, its devices, the engines and the choice."""
    from localspec import devices as machine

    found = machine.as_values()
    print(json.dumps(found, indent=2) if as_json else in_words(found))


def in_words(found: dict[str, Any]) -> str:
    """Return the lines that are printed without `--json`."""
    cpu = found["cpu"]
    lines = [
        f"{cpu['model']}: {counted(cpu['cores'], 'core')}, {cpu['vector'] or 'no wide vectors'}",
        f"memory {size(cpu['memory'])}, {size(cpu['free'])} free",
        "",
        "devices",
        *(f"  {there['name']:<12} {there['engine']:<10} {described(there)}" for there in found["devices"]),
        "",
        "engines",
    ]
    for name, engine in found["engines"].items():
        lines.append(f"  {name:<12} {engine['installed'] or 'not installed: ' + engine['install']}")
    chosen = found["chosen"]
    lines += ["", f"chosen: {chosen['engine']} on {chosen['device']} ({chosen['reason']})"]
    return "\n".join([*lines, *found["notes"]])


def described(device: dict[str, Any]) -> str:
    """Return a device's title with its memory and driver, where they are known."""
    parts = [device["title"]]
    if device["memory"] is not None:
        free = "" if device["free"] is None else f", {size(device['free'])} free"
        parts.append(f"{size(device['memory'])}{free}")
    if device["driver"]:
        parts.append(f"driver {device['driver']}")
    return " | ".join(parts)


def counted(number: int, word: str) -> str:
    """Return "1 core", "2 cores"."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def size(count: int) -> str:
    """Return bytes in GB."""
    return f"{count / 1e9:.1f} GB"
