"""Pixels as a model's eyes take them: resized, cut and scaled as its preprocessor_config.json says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.errors import PromptError, UnsupportedModel
from localspec.formats.files import read_json
from localspec.formats.values import Values, flag, number, shown, whole
from localspec.formats.vision.config import LLAVA

Array = NDArray[np.float32]
MEAN, SPREAD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # CLIP's
BICUBIC, FRAMES = 3, 2  # Pillow's number of the filter; frames of a patch, which a picture fills with itself
SLIMMEST = 200  # sides of a picture that Qwen's eyes take, one by the other
FILES = ("preprocessor_config.json", "processor_config.json")


@dataclass(frozen=True, slots=True)
class Pixels:
    """The numbers of a preprocessor.

    A LLaVA gets a square of `side` pixels, cut from the middle of the picture whose shorter side became so
    long, if `cut`, or that the picture is squeezed into. Qwen's eyes get the picture at nearly its own shape:
    sides are multiples of `patch` * `merge`, and the whole has from `least` to `most` pixels.
    """

    family: str
    side: int
    cut: bool
    patch: int
    merge: int
    least: int
    most: int
    mean: tuple[float, ...] = MEAN
    spread: tuple[float, ...] = SPREAD
    factor: float = 1 / 255
    filter: int = BICUBIC


def read(path: Path, family: str, patch: int) -> Pixels:
    """Read the preprocessor of a folder; raises UnsupportedModel for one that does something else."""
    file = next((path / name for name in FILES if (path / name).is_file()), None)
    if file is None:
        raise UnsupportedModel(
            f"`{path}` has no `{FILES[0]}`, which says how pictures are prepared", "Download it again"
        )
    found = read_json(file)
    inner = found.get("image_processor")
    source = Values(file, inner if isinstance(inner, Mapping) else found)
    for key in ("do_resize", "do_rescale", "do_normalize"):
        if not flag(source, key, True):
            raise UnsupportedModel(f"`{key}` of `{file}` is false, which is not supported")
    size = _sizes(source, "size")
    crop = _sizes(source, "crop_size")
    cut = family == LLAVA and flag(source, "do_center_crop", True) and "height" not in size
    side = 0
    if family == LLAVA:
        side = _square(source, crop or size if cut else size)
        if cut and size.get("shortest_edge", side) != side:
            raise UnsupportedModel(f"`size` and `crop_size` of `{file}` differ, which is not supported")
    return Pixels(
        family=family,
        side=side,
        cut=cut,
        patch=patch if family == LLAVA else whole(source, "patch_size", 14),
        merge=whole(source, "merge_size", 2),
        least=whole(source, "min_pixels", size.get("shortest_edge", 56 * 56), most=1 << 30),
        most=whole(source, "max_pixels", size.get("longest_edge", 28 * 28 * 1280), most=1 << 30),
        mean=_three(source, "image_mean", MEAN),
        spread=_three(source, "image_std", SPREAD),
        factor=number(source, "rescale_factor", 1 / 255),
        filter=whole(source, "resample", BICUBIC, least=0, most=5),
    )


def _sizes(source: Values, key: str) -> dict[str, int]:
    """Return sizes by name; a bare number is that of the shortest edge."""
    found = source.value(key)
    if type(found) is int:
        return {"shortest_edge": found}
    values = Values(source.path, found if isinstance(found, Mapping) else {})
    names = ("shortest_edge", "longest_edge", "height", "width")
    return {name: whole(values, name, most=1 << 30) for name in names if values.value(name) is not None}


def _square(source: Values, sizes: Mapping[str, int]) -> int:
    """Return the side of the square that eyes see."""
    sides = {sizes[name] for name in ("height", "width", "shortest_edge") if name in sizes}
    if len(sides) != 1:
        raise UnsupportedModel(f"`size` of `{source.path}` is no square, which is not supported")
    return sides.pop()


def _three(source: Values, key: str, default: tuple[float, ...]) -> tuple[float, ...]:
    found = source.value(key, list(default))
    if not isinstance(found, list) or len(found) != 3 or not all(type(n) in (int, float) for n in found):
        raise UnsupportedModel(f"`{key}` of `{source.path}` is `{shown(found)}`, expected three numbers")
    return tuple(float(n) for n in found)


def square(pixels: NDArray[np.uint8], how: Pixels) -> Array:
    """Return pixels [height, width, 3] as a LLaVA's eyes take them, [3, side, side]."""
    height, width, _ = pixels.shape
    side = how.side
    if not how.cut:
        return _scaled(_resized(pixels, side, side, how), how).transpose(2, 0, 1)
    long = int(side * max(height, width) / min(height, width))
    tall, wide = (long, side) if height > width else (side, long)
    found = _resized(pixels, wide, tall, how)
    top, left = (tall - side) // 2, (wide - side) // 2
    return _scaled(found[top : top + side, left : left + side], how).transpose(2, 0, 1)


def grid(height: int, width: int, how: Pixels) -> tuple[int, int]:
    """Return the rows and columns of patches that Qwen's eyes cut a picture of that size into.

    Sides become multiples of patch * merge near their own, and then smaller or larger together until their
    product is in range. Raises PromptError for a picture that is a mere strip.
    """
    if max(height, width) > SLIMMEST * min(height, width):
        raise PromptError(
            f"A picture of {width:,} x {height:,} pixels is too slim: at most {SLIMMEST} to 1", "Cut it"
        )
    unit = how.patch * how.merge
    tall, wide = round(height / unit) * unit, round(width / unit) * unit
    if tall * wide > how.most:
        ratio = math.sqrt(height * width / how.most)
        tall, wide = (max(unit, math.floor(side / ratio / unit) * unit) for side in (height, width))
    elif tall * wide < how.least:
        ratio = math.sqrt(how.least / (height * width))
        tall, wide = (math.ceil(side * ratio / unit) * unit for side in (height, width))
    return tall // how.patch, wide // how.patch


def patches(pixels: NDArray[np.uint8], how: Pixels) -> tuple[Array, tuple[int, int]]:
    """Return the patches [rows * columns, values] that Qwen's eyes take, and their rows and columns.

    Patches that become one token follow one another, and each has the picture twice, as two frames.
    """
    rows, columns = grid(pixels.shape[0], pixels.shape[1], how)
    found = _scaled(_resized(pixels, columns * how.patch, rows * how.patch, how), how).transpose(2, 0, 1)
    merge, patch = how.merge, how.patch
    frames = np.broadcast_to(found, (FRAMES, *found.shape))
    cut = frames.reshape(FRAMES, 3, rows // merge, merge, patch, columns // merge, merge, patch)
    flat = cut.transpose(2, 5, 3, 6, 1, 0, 4, 7).reshape(rows * columns, -1)
    return np.ascontiguousarray(flat), (rows, columns)


def _resized(pixels: NDArray[np.uint8], width: int, height: int, how: Pixels) -> NDArray[np.uint8]:
    if pixels.shape[:2] == (height, width):
        return pixels
    from PIL import Image

    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling(how.filter)))


def _scaled(pixels: NDArray[Any], how: Pixels) -> Array:
    """Return (pixels * factor - mean) / spread, by colour."""
    found = pixels.astype(np.float64) * how.factor
    scaled: Array = ((found - np.array(how.mean)) / np.array(how.spread)).astype(np.float32)
    return scaled
