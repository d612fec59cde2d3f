"""`localspec pull`: fetch a model, and its draft if you like."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.errors import BadValue

if TYPE_CHECKING:
    from localspec.library import Library, Model, Progress
    from localspec.library.download.hub import DownloadSize

HELP = """Fetch a model, unless it is here.

A ready OpenVINO graph is taken first, else a GGUF file, else safetensors, which are converted. What it takes
is said before it starts; what was stopped goes on where it was. Files of the hub lie in the cache that all
Hugging Face tools share; HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE mean what they mean there."""
EPILOG = """Examples:

  localspec pull qwen3-8b --with-draft

  localspec pull qwen3-8b:int8

  localspec pull hf:Qwen/Qwen3-4B-GGUF:Q8_0"""
PRECISIONS, FORMS = ("int4", "int8", "fp16"), ("openvino", "gguf", "hf")


def pull(
    model: Annotated[str, typer.Argument(help="A catalogue name, NAME:int8, or hf:OWNER/NAME[:FILE].")],
    precision: Annotated[
        str | None, typer.Option(help="int4, int8 or fp16.", show_default="that of the first source")
    ] = None,
    form: Annotated[
        str | None, typer.Option(help="openvino, gguf or hf.", show_default="that of the first source")
    ] = None,
    with_draft: Annotated[
        bool, typer.Option("--with-draft", help="Fetch the small model that guesses for it, too.")
    ] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Ask no one: what is cached must do.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what is here now as JSON.")] = False,
) -> None:
    """Fetch the models and print where they are."""
    for name, value, choices in (("--precision", precision, PRECISIONS), ("--form", form, FORMS)):
        if value is not None and value not in choices:
            raise BadValue(f"`{name}` is `{value}`", f"It takes {', '.join(choices)}")
    from localspec.library import Library, Terminal, catalogue

    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
    library = Library()
    asked = catalogue.parse_name(model)
    draft = asked[0].draft if asked and with_draft else None
    if with_draft and draft is None:
        raise BadValue(f"No draft for `{model}` is known", "Build one: `localspec prune-draft`")
    with Terminal() as progress:
        found = [fetched(library, model, progress, precision, form)]
        if draft:
            found.append(fetched(library, draft, progress, None, None))
    if as_json:
        print(json.dumps([described(one) for one in found], ensure_ascii=False))
        return
    for one in found:
        print(f"{one.name}  {one.folder}")


def fetched(
    library: Library, name: str, progress: Progress, precision: str | None, form: str | None
) -> Model:
    """Return a model that is here afterwards; what it takes is said before the first byte."""
    from localspec.cli.models.listing import in_words
    from localspec.library import catalogue, storage

    asked = catalogue.parse_name(name)

    def on_size(size: DownloadSize) -> None:
        said = [f"{asked[0].title} from {size.source}" if asked else f"{size.source}"]
        if size.size:
            free = storage.free_bytes(library.home)
            said.append(
                f"{in_words(size.download)} to fetch of {in_words(size.size)}, {in_words(free)} are free"
            )
        if asked:
            known = precision or asked[1] or ("fp16" if form == catalogue.HF else None)
            memory = asked[0].memory(known or asked[0].precision_from(size.source))
            said.append(f"about {in_words(memory)} of memory when it runs")
        progress.say("; ".join(said))

    return library.pull(name, progress, precision, form, on_size)


def described(model: Model) -> dict[str, Any]:
    """Return what `--json` prints of a model."""
    return {
        "name": model.name,
        "folder": str(model.folder),
        "source": model.manifest.source,
        "precision": model.manifest.precision,
        "bytes": sum(model.manifest.sizes.values()),
    }
