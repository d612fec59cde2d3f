"""Make a tokenizer.json for a folder that has only the files of an older tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from localspec.errors import BrokenModel, UnsupportedModel
from localspec.installation import install_command

# A vocabulary: its own file, and others that it needs.
VOCABULARIES: dict[str, tuple[str, ...]] = {
    "tokenizer.model": (),
    "spiece.model": (),
    "sentencepiece.bpe.model": (),
    "vocab.json": ("merges.txt",),
    "vocab.txt": (),
    "tekken.json": (),
}
LIBRARIES = ("sentencepiece", "protobuf")  # beside the extra


def write_fast(folder: Path, into: Path) -> None:
    """Write tokenizer.json into `into`, converted by transformers from the vocabulary in `folder`.

    Raises BrokenModel for a folder without a vocabulary, and UnsupportedModel for one that transformers
    cannot convert, or not without further libraries.
    """
    from localspec.formats.huggingface.loading import first_line

    found = [
        name
        for name, more in VOCABULARIES.items()
        if all((folder / each).is_file() for each in (name, *more))
    ]
    if not found:
        raise BrokenModel(f"`{folder}` lacks `tokenizer.json`", "Download the whole folder")
    command = install_command("export", *LIBRARIES)
    missing = f"`{folder}` has `{found[0]}` but no `tokenizer.json`"
    try:
        tokenizer = _converted(folder)
    except ImportError:
        raise UnsupportedModel(missing, f"Type `{command}`, which can make it") from None
    except Exception as error:  # transformers raises nothing narrower
        hint = f"Take it from another repository of the model, or type `{command}` if they are not installed"
        raise UnsupportedModel(f"{missing}, and making it failed: {first_line(error)}", hint) from None
    tokenizer.save(str(into / "tokenizer.json"))


def _converted(folder: Path) -> Any:
    """Return the tokenizer of a folder, converted by transformers."""
    from transformers import AutoTokenizer

    from localspec.formats.huggingface.loading import silenced

    with silenced():
        made = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if not made.is_fast:
        raise ValueError(f"{type(made).__name__} has no fast variant")
    return made.backend_tokenizer
