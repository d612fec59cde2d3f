"""`localspec ps`: the models that a running server has loaded."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from localspec.cli import console, options
from localspec.cli.server import client
from localspec.cli.sizes import format_bytes

HELP = """List the models that a running server has loaded, and when they leave.

It asks the server on this machine, or that of --host and --port."""
EPILOG = """Examples:

  localspec ps

  localspec ps --port 8000 --json"""
TITLES = ("model", "size", "engine", "draft", "requests", "leaves")


@dataclass(frozen=True, slots=True)
class PsOptions:
    """Options of `localspec ps`, in the order of its help."""

    host: client.Host = "127.0.0.1"
    port: client.Port = client.PORT
    api_key: client.ApiKey = None
    as_json: options.AsJsonList = False


@options.command
def ps(given: PsOptions) -> None:
    """Print one line for each model; raises what asking the server raises."""
    server = client.Server(given.host, given.port, given.api_key)
    found = server.loaded()
    if given.as_json:
        console.print_json(found)
        return
    if not found:
        console.print_text(f"No model is loaded at {server.address}; a request loads one")
        return
    rows = [TITLES, *map(_row, found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        console.print_text("  ".join(cells).rstrip())


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    ours = model.get("localspec", {})
    return (
        str(model["name"]),
        format_bytes(model.get("size", 0)),
        str(ours.get("engine", "")),
        str(ours.get("draft", "")),
        str(ours.get("requests", "")),
        _leaves(model.get("expires_at"), datetime.now(UTC)),
    )


def _leaves(at: str | None, now: datetime) -> str:
    """Return when a model leaves, in words."""
    if at is None:
        return "never"
    seconds = (datetime.fromisoformat(at) - now).total_seconds()
    if seconds < 90:
        return f"in {max(0, round(seconds))} s"
    return f"in {round(seconds / 60)} min" if seconds < 5400 else f"in {round(seconds / 3600)} h"
