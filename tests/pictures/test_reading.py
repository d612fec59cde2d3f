"""Pictures that users give: read upright and in RGB, or refused in words."""

from __future__ import annotations

import base64
import io
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from localspec import pictures
from localspec.errors import PromptError
from localspec.pictures import reading


def saved(picture: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    into = io.BytesIO()
    picture.save(into, kind, **options)
    return into.getvalue()


def corner() -> Image.Image:
    """Return a picture of 6 x 4 that is blue but for a red pixel in its upper left corner."""
    picture = Image.new("RGB", (6, 4), (0, 0, 255))
    picture.putpixel((0, 0), (255, 0, 0))
    return picture


def header(width: int, height: int) -> bytes:
    """Return a PNG that claims a size and has no pixels."""
    size = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    chunks = [b"IHDR" + size, b"IDAT" + zlib.compress(b"")]
    whole = [
        (len(each) - 4).to_bytes(4, "big") + each + zlib.crc32(each).to_bytes(4, "big") for each in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(whole)


def animated() -> bytes:
    frames = [Image.new("RGB", (4, 4), (shade, 0, 0)) for shade in (0, 100, 200)]
    return saved(frames[0], "GIF", save_all=True, append_images=frames[1:])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty: it has 0 bytes"),
        (header(20_000, 10), "has 20,000 x 10 pixels"),
        (header(10, 20_000), "has 10 x 20,000 pixels"),
        (header(16_000, 16_000), "has 16,000 x 16,000 pixels|far more than 80 million"),
        (header(2_000_000_000, 2_000_000_000), "pixels"),
        (animated(), "has 3 frames"),
        (b"%PDF-1.7\n1 0 obj", "is a PDF, not a picture"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "is an SVG"),
        (b"PK\x03\x04rest", "is an archive"),
        (b"plain text", "is no picture"),
        (header(10, 10), "is damaged"),
        (saved(corner().resize((60, 60)))[:90], "is damaged"),
        (b"\xff\xd8\xff\xe0" + b"\0" * 40, "is damaged|is no picture"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_picture_is_refused_in_words(content: bytes, message: str) -> None:
    with pytest.raises(PromptError, match=message) as caught:
        pictures.of_bytes(content, "scene.png")
    assert "`scene.png`" in caught.value.message
    assert caught.value.hint


def test_a_file_of_too_many_bytes_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(reading, "MAX_BYTES", 100)
    (tmp_path / "large.png").write_bytes(b"\x89PNG" + bytes(500))
    content = pictures.read_bytes(tmp_path / "large.png")
    assert len(content) == 101
    with pytest.raises(PromptError, match="more than 100 bytes"):
        pictures.of_bytes(content, "large.png")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="No such file"):
        pictures.read_bytes(tmp_path / "none.png")
    with pytest.raises(PromptError, match="cannot be read"):
        pictures.read_bytes(tmp_path)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_pixels_are_those_of_the_file(kind: str) -> None:
    found = pictures.of_bytes(saved(corner(), kind), "a")
    assert found.size == (6, 4)
    assert np.array_equal(found.pixels, np.asarray(corner()))


@pytest.mark.parametrize("mode", ["L", "LA", "P", "1", "CMYK", "RGBA", "YCbCr", "I;16"])
def test_every_kind_of_pixels_becomes_rgb(mode: str) -> None:
    grey = Image.new("L", (5, 3), 255)
    picture = Image.fromarray(np.full((3, 5), 65535, np.uint16)) if mode == "I;16" else grey.convert(mode)
    kind = "TIFF" if mode in ("CMYK", "YCbCr") else "PNG"
    found = pictures.of_bytes(saved(picture, kind), "a").pixels
    assert found.shape == (3, 5, 3)
    assert found.min() >= 250


def test_a_cmyk_jpeg_keeps_its_colour() -> None:
    red = Image.new("RGB", (16, 16), (255, 0, 0)).convert("CMYK")
    found = pictures.of_bytes(saved(red, "JPEG"), "a").pixels[8, 8]
    assert found[0] > 200
    assert found[1:].max() < 60


def test_transparent_parts_become_white() -> None:
    clear = Image.new("RGBA", (2, 2), (0, 0, 0, 0))
    clear.putpixel((0, 0), (10, 20, 30, 255))
    found = pictures.of_bytes(saved(clear), "a").pixels
    assert found[0, 0].tolist() == [10, 20, 30]
    assert found[1, 1].tolist() == [255, 255, 255]


@pytest.mark.parametrize(
    ("turn", "size", "red"), [(1, (6, 4), (0, 0)), (6, (4, 6), (0, 3)), (3, (6, 4), (3, 5))]
)
def test_a_picture_on_its_side_is_turned_as_its_exif_says(turn: int, size: Any, red: Any) -> None:
    exif = Image.Exif()
    exif[0x0112] = turn
    found = pictures.of_bytes(saved(corner(), "PNG", exif=exif), "a")
    assert found.size == size
    assert found.pixels[red].tolist() == [255, 0, 0]


def test_a_picture_comes_from_base64_and_from_a_data_url() -> None:
    content = saved(corner())
    plain = pictures.of_text(pictures.as_text(content))
    broken = base64.encodebytes(content).decode()
    for text in (f"data:image/png;base64,{pictures.as_text(content)}", broken):
        assert np.array_equal(pictures.of_text(text).pixels, plain.pixels)
    assert plain.digest == pictures.of_bytes(content, "a").digest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("https://example.com/a.png", "localspec fetches none"),
        ("file:///etc/passwd", "localspec fetches none"),
        ("data:image/png,abc", "no data URL of a picture"),
        ("data:text/html;base64,aGk=", "no data URL of a picture"),
        ("data:image/png;base64,", "is empty"),
        ("not base64!", "not in base64"),
        ("aGVsbG8=", "is no picture"),
    ],
)
def test_other_texts_are_refused_and_nothing_is_fetched(text: str, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        pictures.of_text(text)
