"""`localspec devices`: the hardware of this machine, and the engine that would be chosen."""

from __future__ import annotations

from typing import Any

from localspec.cli import console, options
from localspec.cli.sizes import format_gigabytes

HELP = """Show this machine's devices, the installed engines, and the engine that would be chosen and why.

On a CPU `auto` takes the faster of two engines that can run a model; what it measured is shown for each model
that it has started."""
EPILOG = "Example: localspec devices --json"


def devices(as_json: options.AsJson = False) -> None:
    """Print the processor, the devices, the engines and the choice."""
    from localspec import devices as machine
    from localspec.library import Library
    from localspec.runtime.engine_race import known_costs

    measured = {model.name: known_costs(model) for model in Library().all()}
    values = machine.as_values() | {"measured": {name: costs for name, costs in measured.items() if costs}}
    if as_json:
        console.print_json(values, indent=2)
    else:
        console.print_text(format_devices(values))


def format_devices(values: dict[str, Any]) -> str:
    """Return the lines that are printed without `--json`."""
    from localspec.runtime.engine_race import format_costs

    cpu, chosen = values["cpu"], values["chosen"]
    cores = f"{cpu['cores']} core{'' if cpu['cores'] == 1 else 's'}"
    lines = [
        f"{cpu['model']}: {cores}, {cpu['vector'] or 'no wide vectors'}",
        f"memory {format_gigabytes(cpu['memory'])}, {format_gigabytes(cpu['free'])} free",
        "",
        "devices",
        *(
            f"  {device['name']:<12} {device['engine']:<10} {format_device(device)}"
            for device in values["devices"]
        ),
        "",
        "engines",
        *(
            f"  {name:<12} {engine['installed'] or 'not installed: ' + engine['install']}"
            for name, engine in values["engines"].items()
        ),
        "",
        f"chosen: {chosen['engine']} on {chosen['device']} ({chosen['reason']})",
    ]
    measured = [f"  {name}: {format_costs(costs)}" for name, costs in values.get("measured", {}).items()]
    return "\n".join([*lines, *values["notes"], *(["", "measured", *measured] if measured else [])])


def format_device(device: dict[str, Any]) -> str:
    """Return a device's title, with its memory, clock and driver if they are known."""
    parts = [device["title"]]
    if device["memory"] is not None:
        free = "" if device["free"] is None else f", {format_gigabytes(device['free'])} free"
        parts.append(f"{format_gigabytes(device['memory'])}{free}")
    if device["clock"] is not None:
        parts.append(f"{device['clock']} MHz")
    if device["driver"]:
        parts.append(f"driver {device['driver']}")
    return " | ".join(parts)
