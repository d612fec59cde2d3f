"""`localspec serve --engine vllm`: the command line of vLLM's own server.

https://docs.vllm.ai/en/latest/features/speculative_decoding/ has the keys of `--speculative-config`.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localspec.errors import BadValue, LocalspecError, UnknownModel, UnsupportedModel, nearest

GUESSES = 5  # tokens of a draft: vLLM's examples have five
HUB_NAME = re.compile(r"(?:hf:)?(\w[\w.-]*/\w[\w.-]*)")


class NoVllm(LocalspecError):
    """vLLM is not installed."""

    def __init__(self) -> None:
        super().__init__("`vllm` is not installed", "Type `pip install vllm` on the machine with the cards")


def command(
    model: str, *, host: str, port: int, tensor: int, pipeline: int, draft: str, draft_length: str
) -> list[str]:
    """Return the command line that serves a model.

    Raises NoVllm, UnknownModel, UnsupportedModel for a model without safetensors, and BadValue for a draft
    that vLLM does not have.
    """
    words = ["vllm", "serve", weights(model), "--served-model-name", model]
    words += ["--host", host, "--port", str(port)]
    words += ["--tensor-parallel-size", str(tensor), "--pipeline-parallel-size", str(pipeline)]
    if (config := speculative_config(draft, draft_length)) is not None:
        words += ["--speculative-config", json.dumps(config)]
    if shutil.which("vllm") is None:
        raise NoVllm
    return words


def weights(name: str) -> str:
    """Return the safetensors folder of a model, or its name on the hub, which vLLM then asks."""
    from localspec.library import Library, catalogue

    library = Library()
    if (model := library.find(name)) is not None and (folder := model.files_in("safetensors")):
        return str(folder)
    if (Path(name) / "config.json").is_file():
        return str(Path(name).resolve())
    if found := HUB_NAME.fullmatch(name):
        return found[1]
    if (entry := catalogue.lookup(name)) and (source := entry.formats.get(catalogue.HF, {}).get("fp16")):
        return source.name
    if model is not None:
        raise UnsupportedModel(
            f"`vllm` reads safetensors, which `{name}` does not have", "Name its repository"
        )
    raise UnknownModel(f"Unknown model `{name}`", nearest(name, catalogue.names(), "localspec search"))


def speculative_config(draft: str, draft_length: str) -> dict[str, Any] | None:
    """Return vLLM's configuration of a draft, None for none; `auto` copies from the text."""
    from localspec import plugins

    if draft == "off":
        return None
    count = {"num_speculative_tokens": _guesses(draft_length)}
    name = draft.partition(":")[0]
    if name in ("auto", "ngram"):
        given = plugins.parse("drafters", "ngram" if name == "auto" else draft)
        options = {key: setting.default for key, setting in given.part.settings.items()} | given.options
        lengths = {"prompt_lookup_max": options["longest"], "prompt_lookup_min": options["shortest"]}
        return {"method": "ngram", **count, **lengths}
    if name == "draft_model":
        options = plugins.parse("drafters", draft).options
        _only(options, "name", draft)
        return {"method": "draft_model", "model": weights(options["name"]), **count}
    if name in plugins.names("drafters"):
        raise BadValue(f"`vllm` has no drafter `{name}`", "It takes `off`, `ngram` and a model")
    return {"method": "draft_model", "model": weights(draft), **count}


def _guesses(draft_length: str) -> int:
    from localspec import plugins

    spec = plugins.parse("draft_length", draft_length)
    if draft_length == "adaptive":
        return GUESSES
    if spec.name != "fixed" or not spec.options.get("tokens"):
        raise BadValue(f"`vllm` drafts a fixed length, not `{draft_length}`", "Type `fixed:tokens=N`")
    return int(spec.options["tokens"])


def _only(options: Mapping[str, Any], name: str, spec: str) -> None:
    """Raise BadValue for an option beside `name` that vLLM would not get."""
    if others := [option for option in options if option != name]:
        raise BadValue(f"`vllm` takes no `{others[0]}` in `{spec}`", f"Leave `{others[0]}` out")
