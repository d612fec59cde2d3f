"""`localspec pull`: download a model, and its draft on request."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import completion, console
from localspec.cli.sizes import format_bytes
from localspec.errors import BadValue, NetworkError

if TYPE_CHECKING:
    from localspec.library import Library, Progress, StoredModel
    from localspec.library.download.hub import DownloadSize

HELP = """Download a model, unless it is in the library.

An OpenVINO graph is preferred, then a GGUF file, then safetensors, which are converted. The command shows the
size of the download, and of all that is made from it, before it starts, and resumes an interrupted one.
Downloads go to the cache that all Hugging Face tools share, and HF_HOME, HF_ENDPOINT, HF_TOKEN and
HF_HUB_OFFLINE apply. With `--drop-source`, also for a model that is there already, only the OpenVINO graph is
kept once it has been checked, and the file that it was made from is deleted."""
EPILOG = """Examples:

  localspec pull qwen3-8b --with-draft

  localspec pull qwen3-8b:int8

  localspec pull hf:Qwen/Qwen3-4B-GGUF:Q8_0"""
PRECISIONS, FORMATS = ("int4", "int8", "fp16"), ("openvino", "gguf", "hf")


def pull(
    model: Annotated[
        str,
        typer.Argument(
            help="A catalogue name, NAME:int8, or hf:OWNER/NAME[:FILE].",
            autocompletion=completion.every_model,
        ),
    ],
    precision: Annotated[
        str | None, typer.Option(help="int4, int8 or fp16.", show_default="that of the first source")
    ] = None,
    format: Annotated[
        str | None, typer.Option(help="openvino, gguf or hf.", show_default="that of the first source")
    ] = None,
    with_draft: Annotated[bool, typer.Option("--with-draft", help="Download its draft model too.")] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Use cached files only, without network.")
    ] = False,
    drop: Annotated[
        bool, typer.Option("--drop-source", help="Keep only the OpenVINO graph, not what it was made from.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the downloaded models as JSON.")] = False,
) -> None:
    """Download the models and print their folders."""
    check_options(precision, format, drop)
    from localspec.cli.progress import Terminal
    from localspec.library import Library

    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
    library = Library()
    drafts = drafts_of(model) if with_draft else []
    with Terminal() as progress:
        pulled = [download(library, model, progress, precision, format)]
        if drafts:
            pulled.append(download_draft(library, drafts, progress))
        if drop:
            pulled = [without_source(library, each, progress) for each in pulled]
    if as_json:
        console.print_json([model_values(each) for each in pulled])
        return
    for each in pulled:
        console.print_text(f"{each.name}  {each.folder}")


def check_options(precision: str | None, format: str | None, drop: bool) -> None:
    """Raise BadValue for a precision or a format that does not exist, and for options that contradict."""
    for name, value, choices in (("--precision", precision, PRECISIONS), ("--format", format, FORMATS)):
        if value is not None and value not in choices:
            raise BadValue(f"`{name}` is `{value}`", f"It takes {', '.join(choices)}")
    if drop and format not in (None, "openvino"):
        raise BadValue(f"`--format {format}` makes no graph, `--drop-source` keeps only that", "Give one")


def download(
    library: Library, name: str, progress: Progress, precision: str | None, format: str | None
) -> StoredModel:
    """Download a model if it is missing, and return it; its size is shown before the first byte."""
    from localspec.library import catalogue, storage

    known = catalogue.parse_name(name)

    def on_size(size: DownloadSize) -> None:
        parts = [f"{known[0].title} from {size.source}" if known else f"{size.source}"]
        facts = []
        if size.size:
            facts.append(f"downloading {format_bytes(size.download)} of {format_bytes(size.size)}")
        if size.disk:
            facts.append(f"up to {format_bytes(size.disk)} of disk with its graph and caches")
        if facts:
            free = format_bytes(storage.free_bytes(library.home))
            parts.append(", ".join([*facts, f"{free} free"]))
        if known:
            requested = precision or known[1] or ("fp16" if format == catalogue.HF else None)
            memory = known[0].memory(requested or known[0].precision_from(size.source))
            parts.append(f"needs about {format_bytes(memory)} of memory to run")
        progress.say("; ".join(parts))

    if known and known[0].kind == catalogue.DIARIZATION and not (precision or format):
        from localspec.speech.diarization import installed

        return installed.get(library, progress)
    return library.pull(name, progress, precision, format, on_size)


def drafts_of(model: str) -> list[str]:
    """Return the drafts of a model of the catalogue, the best first; raises BadValue if it has none."""
    from localspec.library import catalogue

    known = catalogue.parse_name(model)
    if known is None or known[0].draft is None:
        raise BadValue(f"No draft for `{model}` is known", "Build one: `localspec prune-draft`")
    return [name for name in (known[0].draft, known[0].draft_en) if name]


def download_draft(library: Library, names: list[str], progress: Progress) -> StoredModel:
    """Download the first draft that can be had; the error of the last one is raised."""
    first, *others = names
    try:
        return download(library, first, progress, None, None)
    except NetworkError as error:
        if not others:
            raise
        progress.say(f"{error.message}; trying `{others[0]}`, a draft for English")
        return download_draft(library, others, progress)


def without_source(library: Library, model: StoredModel, progress: Progress) -> StoredModel:
    """Return a model of which only the OpenVINO graph is kept, and say what that frees."""
    from localspec.library.importing.drop_source import drop_source

    kept, freed = drop_source(library, library.add_graph(model, progress, "required"), progress)
    place = f"; `{kept.manifest.dropped}` is yours and stays" if kept.manifest.keeps_yours else ""
    progress.say(f"`{kept.name}` is its OpenVINO graph alone: {format_bytes(freed)} freed{place}")
    return kept


def model_values(model: StoredModel) -> dict[str, Any]:
    """Return a model as `--json` prints it."""
    return {
        "name": model.name,
        "folder": str(model.folder),
        "source": model.manifest.source,
        "precision": model.manifest.precision,
        "bytes": sum(model.manifest.sizes.values()),
    }
