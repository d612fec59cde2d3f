"""`localspec export`: a model as files for other engines and programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

HELP = """Write a model as an OpenVINO folder, a GGUF file or a Hugging Face folder.

Tokenizer, chat template and generation settings come along, and with the extra `export` the tokenizer's graph
that OpenVINO GenAI reads. A draft that was cut is written without the layers that are gone. A child process
does it, and the folder appears whole or not at all."""
EPILOG = """Examples:

  localspec export smollm2-135m --to gguf --type Q8_0

  localspec export qwen2.5-coder-1.5b --to openvino --npu --output coder-npu"""


def export(
    model: Annotated[str, typer.Argument(help="Which model.")],
    to: Annotated[str, typer.Option(help="Which files: openvino, gguf or torch.")],
    bits: Annotated[
        int | None, typer.Option(help="Bits of a weight: 16, 8 or 4.", show_default="as they are")
    ] = None,
    type: Annotated[
        str | None, typer.Option(help="A GGUF type such as Q4_K_M.", show_default="as it is")
    ] = None,
    npu: Annotated[bool, typer.Option("--npu", help="An OpenVINO graph as Intel's NPUs take it.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder, a new one.", show_default="MODEL-TO")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write the folder and print what is in it."""
    from localspec import plugins
    from localspec.build import export as write
    from localspec.build.exporting import memory
    from localspec.library import Library, Terminal

    asked = {"to": to, "bits": bits, "type": type, "npu": "on" if npu else None}
    step = "export:" + ",".join(f"{name}={value}" for name, value in asked.items() if value is not None)
    plugins.parse("steps", step)
    library = Library()
    with Terminal() as progress:
        found = library.resolve(model, progress, ("gguf", "safetensors", "openvino"))
        into = output or Path(f"{found.name}-{to}")
        needed = memory(found, library, to)
        progress.say(f"Writing `{into}`; it takes up to {needed / 1e9:.1f} GB of memory")
    write(found, step, into, library, Terminal)
    sizes = {path.name: path.stat().st_size for path in sorted(into.iterdir())}
    if as_json:
        print(json.dumps({"folder": str(into.resolve()), "sizes": sizes}, ensure_ascii=False))
        return
    print(into)
    for name, size in sizes.items():
        print(f"  {size:>15,}  {name}")
