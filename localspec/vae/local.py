"""An autoencoder on this machine: diffusers' AutoencoderKL, in tiles where memory is short."""

from __future__ import annotations

import json
import logging
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BadValue, BrokenModel, MissingExtra, TooLittleMemory, UnsupportedModel
from localspec.formats.files import read_json
from localspec.vae import images
from localspec.vae.tensors import Tensor
from localspec.vae.wire import Asked

KIND = "AutoencoderKL"
ACTIVATIONS = 6  # copies of the widest activations that decoding holds at once, as measured


class Autoencoder:
    """An AutoencoderKL of a folder, on a torch device; one request at a time."""

    def __init__(self, folder: Path, device: str = "auto") -> None:
        """Load the folder; raises MissingExtra, UnsupportedModel, BrokenModel and UnknownDevice."""
        config = _config(folder)
        try:
            import torch

            logging.getLogger("diffusers.utils.import_utils").setLevel(logging.ERROR)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about models that are imported beside this one
                from diffusers import AutoencoderKL
        except ImportError as error:
            raise MissingExtra((error.name or "diffusers").partition(".")[0], "vae") from None
        from localspec.formats.huggingface.torch_devices import find_device

        self.device, self._place = find_device(device)
        halved = self._place.type == "cuda" and not config.get("force_upcast", True)
        self._dtype = torch.float16 if halved else torch.float32
        load: Any = AutoencoderKL.from_pretrained
        try:
            model = load(str(folder), torch_dtype=self._dtype, local_files_only=True)
        except (OSError, ValueError, RuntimeError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise BrokenModel(
                f"`{folder}` is damaged: {str(error).splitlines()[0]}", "Download it again"
            ) from None
        self._model = model.to(self._place).eval().requires_grad_(False)
        self._lock = threading.Lock()
        self.channels = int(self._model.config.latent_channels)
        self.factor = 2 ** (len(self._model.config.block_out_channels) - 1)

    def decode(self, latents: Tensor, asked: Asked) -> tuple[bytes, dict[str, str]]:
        """Return what is asked for, a picture or a tensor, and headers that describe a tensor.

        Raises BadValue for latents of another model, and TooLittleMemory.
        """
        import torch

        x = self._unscaled(self._unpacked(latents, asked), asked)
        with (
            self._lock,
            torch.inference_mode(),
            self._tiled(x.shape[-2] * self.factor, x.shape[-1] * self.factor),
        ):
            found = self._model.decode(x.to(self._place, self._dtype)).sample
        if asked.output == "pt" and not asked.processed:
            return _answer(Tensor.of(found.half().cpu().numpy()))
        pixels = ((found.float() / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)
        pixels = pixels.permute(0, 2, 3, 1).cpu().numpy()
        if asked.output == "pt":
            return _answer(Tensor.of(pixels))
        if len(pixels) != 1:
            raise BadValue(f"{len(pixels)} pictures do not fit one file", "Send latents of one picture each")
        return images.encoded(pixels[0], asked.image_format), {}

    def tensor(self, latents: Tensor, asked: Asked) -> Tensor:
        """Return pictures as a tensor; raises what `decode` raises."""
        data, headers = self.decode(latents, asked)
        return Tensor(data, tuple(json.loads(headers["shape"])), headers["dtype"])

    def encode(self, pixels: NDArray[np.uint8], asked: Asked) -> Tensor:
        """Return the latents of a picture [high, wide, 3]: the mean of their distribution.

        Sides that are no multiple of the autoencoder's factor lose their last pixels. Raises BadValue for a
        picture that is smaller, and TooLittleMemory.
        """
        import torch

        high, wide = (side // self.factor * self.factor for side in pixels.shape[:2])
        if not high or not wide:
            raise BadValue(f"The picture is smaller than {self.factor} pixels a side", "Give a larger one")
        x = torch.from_numpy(pixels[:high, :wide].copy()).permute(2, 0, 1)[None].to(self._place, self._dtype)
        with self._lock, torch.inference_mode(), self._tiled(high, wide):
            found = self._model.encode(x / 127.5 - 1).latent_dist.mode().float()
        factor, shift = self._scaling(asked)
        return Tensor.of(((found - (shift or 0.0)) * (factor or 1.0)).half().cpu().numpy())

    def _scaling(self, asked: Asked) -> tuple[float | None, float | None]:
        config = self._model.config
        own = asked.own_scaling and asked.scaling.factor is None
        return (config.scaling_factor, config.shift_factor) if own else asked.scaling

    def _unscaled(self, x: Any, asked: Asked) -> Any:
        factor, shift = self._scaling(asked)
        return x / (factor or 1.0) + (shift or 0.0)

    def _unpacked(self, latents: Tensor, asked: Asked) -> Any:
        """Return latents [pictures, channels, high, wide]; packed ones hold two by two of them in a row."""
        import torch

        x = torch.from_numpy(latents.numpy().astype(np.float32))
        if x.ndim == 3:
            if asked.size is None:
                raise BadValue("Packed latents do not tell their size", "Add `height` and `width` in pixels")
            high, wide = (2 * (side // (2 * self.factor)) for side in asked.size)
            if tuple(x.shape[1:]) != (high * wide // 4, 4 * self.channels):
                wanted = [high * wide // 4, 4 * self.channels]
                raise BadValue(
                    f"Packed latents of {asked.size[1]} x {asked.size[0]} are {wanted} for this model, "
                    f"and these are {list(x.shape[1:])}",
                    "Check the size, and that the latents are this model's",
                )
            x = x.view(len(x), high // 2, wide // 2, self.channels, 2, 2)
            x = x.permute(0, 3, 1, 4, 2, 5).reshape(len(x), self.channels, high, wide)
        if x.shape[1] != self.channels:
            raise BadValue(
                f"The latents have {x.shape[1]} channels, and those of this autoencoder {self.channels}",
                "They are of another model",
            )
        if not torch.isfinite(x).all():
            raise BadValue("The latents have numbers that are not finite", "Check where they come from")
        return x

    def _tiled(self, high: int, wide: int) -> Any:
        """Choose tiles where a whole picture does not fit; raises TooLittleMemory if no tile does."""
        from localspec.formats.huggingface.torch_devices import free_memory, memory_errors

        free, config = free_memory(self._place), self._model.config
        side = int(config.sample_size or 512)
        width = max(config.block_out_channels[0], 1) * ACTIVATIONS * self._dtype.itemsize
        if (whole := high * wide * width) < 0.8 * free:
            self._model.disable_tiling()
        elif (needed := min(side, high) * min(side, wide) * width) < 0.8 * free:
            self._model.enable_tiling()
        else:
            raise TooLittleMemory(f"a picture of {wide} x {high}", min(needed, whole), free)
        return memory_errors(self._place, f"a picture of {wide} x {high}")


def _config(folder: Path) -> dict[str, Any]:
    """Return the configuration of a folder; raises UnsupportedModel if it holds no such autoencoder."""
    if not (folder / "config.json").is_file():
        raise UnsupportedModel(
            f"`{folder}` is no folder of an autoencoder: it has no config.json",
            "Give the folder `vae` of a diffusers pipeline",
        )
    found = read_json(folder / "config.json")
    if found.get("_class_name") != KIND:
        kind = found.get("_class_name") or found.get("model_type") or "nothing that localspec knows"
        raise UnsupportedModel(
            f"`{folder}` holds {kind}, not an {KIND}", "Give the folder `vae` of a pipeline"
        )
    return found


def _answer(tensor: Tensor) -> tuple[bytes, dict[str, str]]:
    return tensor.data, {"shape": json.dumps(list(tensor.shape)), "dtype": tensor.dtype}
