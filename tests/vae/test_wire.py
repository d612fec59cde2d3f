"""Latents in files and in requests, and what is refused of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from localspec.errors import BadValue, BrokenModel, NetworkError
from localspec.vae import tensors, wire
from localspec.vae.tensors import Tensor
from localspec.vae.wire import Asked, Scaling

LATENTS = np.random.default_rng(0).normal(size=(2, 4, 8, 6)).astype(np.float16)


@pytest.mark.parametrize("name", ["latents.safetensors", "latents.npy"])
def test_latents_are_read_as_they_were_written(name: str, tmp_path: Path) -> None:
    tensors.write(tmp_path / name, Tensor.of(LATENTS))
    found = tensors.read(tmp_path / name)
    assert (found.shape, found.dtype) == ((2, 4, 8, 6), "float16")
    assert np.array_equal(found.numpy(), LATENTS)
    assert [part.shape for part in found.parts()] == [(1, 4, 8, 6)] * 2
    assert np.array_equal(found.parts()[1].numpy()[0], LATENTS[1])


def test_bfloat16_is_the_upper_half_of_float32() -> None:
    found = Tensor(np.array([0x3F80, 0xC000], np.uint16).tobytes(), (1, 1, 1, 2), "bfloat16")
    assert found.numpy().ravel().tolist() == [1.0, -2.0]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.pt", b"x", "neither in .safetensors nor in .npy"),
        ("a.npy", b"\x93NUMPY nonsense", "damaged"),
        ("a.npy", b"", "damaged"),
        ("a.safetensors", b"\x04", "truncated"),
    ],
)
def test_files_without_latents_are_refused(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises((BadValue, BrokenModel), match=said):
        tensors.read(tmp_path / name)
    with pytest.raises(BadValue, match="No such file"):
        tensors.read(tmp_path / "none.npy")


def test_a_file_of_several_tensors_needs_one_called_latents(tmp_path: Path) -> None:
    save_file({"a": LATENTS, "b": LATENTS}, tmp_path / "a.safetensors")
    with pytest.raises(BadValue, match=r"no tensor `latents` \(it has a, b\)"):
        tensors.read(tmp_path / "a.safetensors")
    save_file({"a": LATENTS[:1], "latents": LATENTS}, tmp_path / "b.safetensors")
    assert tensors.read(tmp_path / "b.safetensors").shape == LATENTS.shape
    save_file({"latents": LATENTS.astype(np.int32)}, tmp_path / "c.safetensors")
    with pytest.raises(BadValue, match="latents in I32"):
        tensors.read(tmp_path / "c.safetensors")


def test_a_request_comes_back_from_its_parameters() -> None:
    asked = Asked(Scaling(0.3611, 0.1159), "pil", "jpg", processed=True, size=(64, 48))
    given = dict(asked.parameters(Tensor.of(LATENTS)))
    assert Asked.of(given) == asked
    assert given["dtype"] == "float16"
    assert asked.accepts == "image/jpeg"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"scaling_factor": "much"}, "`scaling_factor` is `much`"),
        ({"scaling_factor": "0"}, "`scaling_factor` is 0"),
        ({"shift_factor": "nan"}, "`shift_factor` is `nan`"),
        ({"output_type": "mp4"}, "`output_type` is `mp4`"),
        ({"image_format": "gif"}, "`image_format` is `gif`"),
        ({"partial_postprocess": "perhaps"}, "`partial_postprocess` is `perhaps`"),
    ],
)
def test_parameters_that_mean_nothing_are_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(BadValue, match=said):
        Asked.of(given)


@pytest.mark.parametrize(
    ("shape", "dtype", "said"),
    [
        (["1", "4", "8", "7"], "float16", "has 448"),
        (["1", "4", "-8", "6"], "float16", "whole numbers"),
        (["384"], "uint8", "4 dimensions"),
        (["1", "4", "8", "6"], "complex64", "the type `complex64`"),
        ([], "float16", "no `shape`"),
        (["1", "4", "8", "6"], None, "no `dtype`"),
    ],
)
def test_tensors_that_contradict_themselves_are_refused(
    shape: list[str], dtype: str | None, said: str
) -> None:
    with pytest.raises(BadValue, match=said):
        wire.tensor_of(LATENTS[:1].tobytes(), shape, dtype, "The request")


@pytest.mark.parametrize(("high", "wide"), [(32, 24), (8, 6)])
def test_a_picture_has_a_whole_multiple_of_the_latents_sides(high: int, wide: int) -> None:
    wire.check_size(high, wide, Tensor.of(LATENTS))


@pytest.mark.parametrize(("high", "wide"), [(33, 24), (32, 32), (0, 0), (8 * 65, 6 * 65)])
def test_a_picture_of_another_size_is_no_answer(high: int, wide: int) -> None:
    with pytest.raises(NetworkError, match="pixels for latents of 6 x 8"):
        wire.check_size(high, wide, Tensor.of(LATENTS))
