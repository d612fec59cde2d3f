"""Eyes beside the OpenVINO graph of a text part: files of their own, which transformers runs on torch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from localspec.errors import BrokenModel, MissingExtra
from localspec.formats.files import read_json
from localspec.formats.huggingface.folder_checks import check_sizes
from localspec.formats.huggingface.loading import dtype_option, first_line, silenced
from localspec.formats.huggingface.safetensors import SafetensorsFolder, copy_tensors
from localspec.formats.huggingface.torch_devices import use_threads
from localspec.formats.values import Values
from localspec.formats.vision import config, pixels
from localspec.formats.vision.eyes import Eyes, Patches

FILE = "openvino_eyes.bin"  # a .safetensors file, under a name by which none takes it for a model's weights
WIDER = 2  # times the bytes of the file, most of them in 16 bits, that the eyes take in float32
LIBRARIES = ("torch", "transformers", "PIL")
NO_TEXT = {  # a language model that weighs nothing, in the place of the one that became a graph
    "num_hidden_layers": 0,
    "vocab_size": 1,
    "intermediate_size": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
}


def check(folder: SafetensorsFolder) -> None:
    """Raise UnsupportedModel for eyes that localspec does not compute, BrokenModel for far too large ones."""
    Eyes(folder.path, config.read(folder), lambda values, patches: None)
    inner = folder.value("vision_config")
    check_sizes(folder, Values(folder.path / "config.json", inner if isinstance(inner, Mapping) else {}))


def write(folder: SafetensorsFolder, text: SafetensorsFolder, context: int, into: Path) -> None:
    """Write the eyes of a model whose `text` part is a graph for texts of `context` tokens.

    Raises the errors of `check`, and OSError.
    """
    check(folder)
    copy_tensors(folder, [name for name in folder.tensors if config.EYES.match(name)], into / FILE)
    preparing = next(folder.path / name for name in pixels.FILES if (folder.path / name).is_file())
    shutil.copyfile(preparing, into / preparing.name)
    inner = {**text.config, "max_position_embeddings": context}
    values = json.dumps({**folder.config, "text_config": inner}, ensure_ascii=False, indent=2)
    (into / "config.json").write_text(values + "\n", "utf-8")


def weighs(folder: Path) -> int:
    """Return the bytes that the eyes of a folder take in float32, 0 for a model of text."""
    file = folder / FILE
    return WIDER * file.stat().st_size if file.is_file() else 0


class StoredEyes:
    """Eyes that `write` wrote, in float32 on the CPU: torch is imported when the first picture comes."""

    def __init__(self, folder: Path, threads: int = 0) -> None:
        """Read what needs no library; `threads` 0 is torch's choice.

        Raises MissingExtra without the libraries, UnsupportedModel and BrokenModel.
        """
        missing = next((name for name in LIBRARIES if find_spec(name) is None), None)
        if missing:
            raise MissingExtra({"PIL": "pillow"}.get(missing, missing), "vision")
        source = SafetensorsFolder(folder, read_json(folder / "config.json"), {})
        self.shape = config.read(source)
        self.eyes = Eyes(folder, self.shape, self._see)
        self._folder, self._threads = folder, threads
        self._model: Any = None

    def _see(self, values: pixels.Array, patches: Patches | None) -> pixels.Array:
        """Return the embeddings [tokens, width] of a LLaVA's picture."""
        import torch

        if self._threads:
            use_threads(self._threads)
        if self._model is None:
            self._model = _load(self._folder)
        with torch.inference_mode():
            found: pixels.Array = features_of(self._model, torch.from_numpy(values)[None]).numpy()
        return found


def features_of(model: Any, values: Any, **given: Any) -> Any:
    """Return the embeddings [tokens, width] of a picture's values in transformers' modules."""
    found = model.model.get_image_features(pixel_values=values, **given)
    return getattr(found, "pooler_output", found)[0]  # as transformers 5 returns it, or 4


def _load(folder: Path) -> Any:
    """Return transformers' model of a folder with its eyes alone, in float32; raises BrokenModel."""
    import torch
    import transformers
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    with silenced():
        try:
            about = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
            width = about.text_config.hidden_size
            about.text_config = transformers.LlamaConfig(hidden_size=width, head_dim=2, **NO_TEXT)
            model, info = transformers.LlavaForConditionalGeneration.from_pretrained(
                None,
                config=about,
                state_dict=load_file(folder / FILE),
                output_loading_info=True,
                **dtype_option(torch.float32),
            )
        except (SafetensorError, OSError, RuntimeError) as error:
            raise BrokenModel(
                f"The eyes in `{folder}` cannot be loaded: {first_line(error)}", "Download the model again"
            ) from None
    _check(folder, info)
    return model.eval().requires_grad_(False)


def _check(folder: Path, info: Mapping[str, Any]) -> None:
    """Raise BrokenModel for a tensor that the eyes lack, or that is none of theirs."""
    lacking = [name for name in info["missing_keys"] if config.EYES.match(name)]
    for name in (*lacking, *info["unexpected_keys"]):
        what = "lack" if name in lacking else "have"
        raise BrokenModel(f"The eyes in `{folder}` {what} the tensor `{name}`", "Download the model again")
