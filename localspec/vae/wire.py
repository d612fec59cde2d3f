"""Requests to remote autoencoders and their answers, as diffusers' `remote_decode` and `remote_encode` do it.

A request is the bytes of a tensor or a picture; shape, type and all that is asked for are query parameters. A
tensor comes back as bytes with the headers `shape` and `dtype`, a picture as a PNG or JPEG file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from localspec.errors import BadValue, NetworkError, printable
from localspec.vae.tensors import SIZES, Tensor

BINARY = "tensor/binary"
FORMATS = {"png": "image/png", "jpg": "image/jpeg"}
OUTPUTS = ("pil", "pt")
MAX_FACTOR = 64  # pixels of a latent's side


class Scaling(NamedTuple):
    """Latents of a pipeline are `(x - shift) * factor`; None where they are the autoencoder's own."""

    factor: float | None = None
    shift: float | None = None


SCALINGS = {  # of well-known autoencoders, by model
    "sd": Scaling(0.18215),
    "sdxl": Scaling(0.13025),
    "sd3": Scaling(1.5305, 0.0609),
    "flux": Scaling(0.3611, 0.1159),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to an autoencoder, beside its tensor."""

    scaling: Scaling = Scaling()
    output: str = "pil"
    image_format: str = "png"
    processed: bool = False  # a tensor of bytes, as a picture has them
    size: tuple[int, int] | None = None  # height and width in pixels, which packed latents do not tell
    own_scaling: bool = False  # that of the autoencoder's configuration

    def parameters(self, tensor: Tensor | None) -> list[tuple[str, str]]:
        """Return the query parameters of a request."""
        found = [] if tensor is None else [("shape", str(side)) for side in tensor.shape]
        if tensor is not None:
            found += [("dtype", tensor.dtype), ("output_type", self.output)]
            found += [("image_format", self.image_format), ("partial_postprocess", str(self.processed))]
        for name, value in zip(("scaling_factor", "shift_factor"), self.scaling, strict=True):
            found += [] if value is None else [(name, repr(value))]
        if self.size:
            found += [("height", str(self.size[0])), ("width", str(self.size[1]))]
        return found

    @property
    def accepts(self) -> str:
        """The media type of the answer."""
        return FORMATS[self.image_format] if self.output == "pil" else BINARY

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Asked:
        """Return what query parameters ask for; raises BadValue that names the parameter."""
        output, form = given.get("output_type", "pt"), given.get("image_format", "jpg")
        for name, value, known in (("output_type", output, OUTPUTS), ("image_format", form, FORMATS)):
            if value not in known:
                raise BadValue(f"`{name}` is `{printable(value)}`", f"Choose from {', '.join(known)}")
        scaling = Scaling(_number(given, "scaling_factor"), _number(given, "shift_factor"))
        if scaling.factor == 0:
            raise BadValue("`scaling_factor` is 0", "Give that of the model, such as 0.18215")
        size = _number(given, "height"), _number(given, "width")
        return cls(
            scaling=scaling,
            output=output,
            image_format=form,
            processed=_truth(given, "partial_postprocess"),
            size=None if None in size else (int(size[0] or 0), int(size[1] or 0)),
            own_scaling=_truth(given, "do_scaling"),
        )


def tensor_of(data: bytes, shape: list[str], dtype: str | None, what: str) -> Tensor:
    """Return the tensor of a request or an answer; raises BadValue if it contradicts itself."""
    if dtype is None or not shape:
        raise BadValue(f"{what} has no `shape` or no `dtype`", "Send both as parameters")
    if not all(side.isascii() and side.isdigit() and len(side) < 10 for side in shape):
        raise BadValue(f"{what} has the shape {printable(str(shape))}", "Give whole numbers")
    return Tensor(data, tuple(map(int, shape)), dtype).check(what)


def sent(data: bytes, headers: Mapping[str, str]) -> Tensor:
    """Return the tensor that an endpoint sent; raises NetworkError if it contradicts its headers."""
    try:
        shape = json.loads(headers.get("shape", "null"))
        sides = [str(side) for side in shape] if isinstance(shape, list) else []
        return tensor_of(data, sides, headers.get("dtype"), "The answer")
    except (ValueError, BadValue) as error:
        raise NetworkError(f"The endpoint sent no tensor: {error}", "Check `--endpoint`") from None


def answer_of(data: bytes, headers: Mapping[str, str], asked: Tensor, processed: bool) -> Tensor:
    """Return a tensor of pictures that an endpoint sent for latents; raises NetworkError for a lie."""
    found = sent(data, headers)
    high, wide = found.shape[1:3] if processed else found.shape[-2:]
    if len(found.shape) != 4 or found.shape[0] != asked.shape[0] or found.shape[3 if processed else 1] != 3:
        raise NetworkError(
            f"The endpoint sent {list(found.shape)} for {list(asked.shape)}", "Check `--endpoint`"
        )
    check_size(high, wide, asked)
    return found


def check_size(high: int, wide: int, asked: Tensor) -> None:
    """Raise NetworkError for a picture that is not the one of latents [n, channels, high, wide]."""
    if len(asked.shape) != 4:
        return
    factor = high / asked.shape[2]
    if factor != int(factor) or not 1 <= factor <= MAX_FACTOR or wide != factor * asked.shape[3]:
        raise NetworkError(
            f"The endpoint sent {wide} x {high} pixels for latents of {asked.shape[3]} x {asked.shape[2]}",
            "Check `--endpoint`: it may decode another model",
        )


def most_bytes(asked: Tensor) -> int:
    """Return how many bytes an honest answer has at most: of float32 pixels, and 64 KB of a file's own."""
    if len(asked.shape) != 4:
        return math.prod(asked.shape) * MAX_FACTOR**2 * SIZES["float32"]
    pixels = asked.shape[0] * asked.shape[2] * asked.shape[3] * 16**2
    return 3 * pixels * SIZES["float32"] + 65_536


def _number(given: Mapping[str, str], name: str) -> float | None:
    if (text := given.get(name)) in (None, "None"):
        return None
    try:
        found = float(text or "")
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise BadValue(f"`{name}` is `{printable(text or '')}`", "Give a number")
    return found


def _truth(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "false").lower()
    if text not in ("true", "false", "none", "1", "0"):
        raise BadValue(f"`{name}` is `{printable(text)}`", "Give true or false")
    return text in ("true", "1")
