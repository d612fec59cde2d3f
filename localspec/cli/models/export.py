"""`localspec export`: write a model for other engines and programs."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from localspec.cli import completion, console
from localspec.cli.sizes import format_bytes

HELP = """Write a model as an OpenVINO folder, a GGUF file or a Hugging Face folder.

The folder has the tokenizer, the chat template and the generation settings, and with the extra `export` also
the tokenizer's graph that OpenVINO GenAI needs. A pruned draft is written without the pruned layers. The
folder appears only once it is complete. The command ends with the size of the weights beside that of the
model's, and what to type next."""
EPILOG = """Examples:

  localspec export smollm2-135m --to gguf --type Q8_0

  localspec export qwen2.5-coder-1.5b --to openvino --npu --output coder-npu"""


def export(
    model: Annotated[str, typer.Argument(help="Model to export.", autocompletion=completion.models)],
    to: Annotated[str, typer.Option(help="Format: openvino, gguf or torch.")],
    bits: Annotated[
        int | None, typer.Option(help="Bits per weight: 16, 8 or 4.", show_default="unchanged")
    ] = None,
    type: Annotated[
        str | None, typer.Option(help="GGUF type, such as Q4_K_M.", show_default="unchanged")
    ] = None,
    npu: Annotated[bool, typer.Option("--npu", help="Write an OpenVINO graph for Intel NPUs.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="New folder to write.", show_default="MODEL-TO")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the written files as JSON.")] = False,
) -> None:
    """Write the folder and print its files."""
    from localspec import plugins
    from localspec.build import export as write
    from localspec.build import weight_bytes
    from localspec.build.exporting import memory_needed
    from localspec.cli.progress import Terminal
    from localspec.library import Library

    given = {"to": to, "bits": bits, "type": type, "npu": "on" if npu else None}
    step = "export:" + ",".join(f"{name}={value}" for name, value in given.items() if value is not None)
    plugins.parse("steps", step)
    library = Library()
    with Terminal() as progress:
        source = library.resolve(model, progress, ("gguf", "safetensors", "openvino"))
        into = output or Path(f"{source.name}-{to}")
        needed = memory_needed(source, library, to)
        progress.say(f"Writing `{into}`; it takes up to {needed / 1e9:.1f} GB of memory")
        write(source, step, into, library, progress)
    sizes = {path.name: path.stat().st_size for path in sorted(into.iterdir())}
    if as_json:
        console.print_json({"folder": str(into.resolve()), "sizes": sizes})
        return
    console.print_text(format_export(into, sizes, weight_bytes(source), npu=npu))


def format_export(into: Path, sizes: dict[str, int], before: int, *, npu: bool) -> str:
    """Return the files, the size beside the `before` bytes of the source's weights, and what to type next."""
    after = max(sizes.values(), default=0)
    lines = [str(into), *(f"  {format_bytes(size):>10}  {name}" for name, size in sizes.items())]
    lines.append(f"The weights take {format_bytes(after)} instead of {format_bytes(before)}")
    gguf = next((name for name in sizes if name.endswith(".gguf")), "")
    model = into / gguf if gguf else into
    path = str(model) if model.is_absolute() else os.path.join(os.curdir, model)
    return "\n".join([*lines, f"hint: localspec chat {shlex.quote(path)}" + " --engine npu" * npu])
