"""The torch engine on models with eyes: logits of transformers, and a session like any other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from random_models import tiny_vision
from random_models.tiny_vision import TOKEN, VOCAB, picture

from localspec.core.contracts import PictureSession, TreeSession
from localspec.core.cursor import Cursor
from localspec.core.rewind_check import rewind_fault
from localspec.core.types import Branch
from localspec.engines.torch.engine import Torch
from localspec.engines.torch.vision.session import RoutedSession
from localspec.errors import BadValue, BrokenModel, ContextFull, LocalspecError, PromptError, UnsupportedModel

PROCESSORS = {"llava": "CLIPImageProcessor", "qwen": "Qwen2VLImageProcessor"}
SIZES = [(40, 28), (20, 33), (12, 12), (7, 90)]


def session_of(path: Path, **options: Any) -> PictureSession:
    found = Torch(path, device="cpu", **options).session()
    assert isinstance(found, PictureSession)
    return found


def text_with(session: PictureSession, pictures: list[Any]) -> list[int]:
    """Return a text in which each picture has words around it."""
    start = tiny_vision.TOKEN + 2  # Qwen's mark before a picture
    text = [3, 4]
    for at, each in enumerate(pictures):
        text += [start, *[TOKEN] * session.tokens_of(each), 5 + at, 6]
    return [*text, 7, 8, 9]


def expected(path: Path, kind: str, text: list[int], pictures: list[Any]) -> Any:
    """Return transformers' logits, and those of its own preprocessor's pixels."""
    about = json.loads((path / "preprocessor_config.json").read_text("utf-8"))
    del about["image_processor_type"]
    prepared = getattr(transformers, PROCESSORS[kind])(**about)(
        [Image.fromarray(each.pixels) for each in pictures], return_tensors="pt"
    )
    model = transformers.AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32).eval()
    with torch.inference_mode():
        ids = torch.tensor([text])
        more = tiny_vision.about_tokens(model, ids)
        return model(input_ids=ids, **more, **prepared).logits[0].numpy()


@pytest.mark.parametrize("kind", ["llava", "qwen"])
@pytest.mark.parametrize("sizes", [SIZES[:1], SIZES[1:3], SIZES[1:]], ids=["one", "two", "three"])
def test_logits_are_those_of_transformers(
    kind: str, sizes: list[tuple[int, int]], request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(kind)
    session, pictures = session_of(path), [picture(*size, seed) for seed, size in enumerate(sizes)]
    text = text_with(session, pictures)
    session.see(pictures, text)
    found = session.forward(text, len(text))
    assert np.abs(found - expected(path, kind, text, pictures)).max() < 1e-4


@pytest.mark.parametrize("kind", ["llava", "qwen"])
def test_a_text_read_in_any_pieces_has_the_same_logits(kind: str, request: pytest.FixtureRequest) -> None:
    session, pictures = session_of(request.getfixturevalue(kind)), [picture(40, 28), picture(20, 33, 1)]
    text = text_with(session, pictures)
    session.see(pictures, text)
    whole = session.forward(text, len(text)).copy()
    for piece in (1, 3, 7):
        assert session.rewind(piece + 1) == piece + 1
        for at in range(piece + 1, len(text), piece):
            part = text[at : at + piece]
            assert np.abs(session.forward(part, len(part)) - whole[at : at + piece]).max() < 1e-4


@pytest.mark.parametrize("kind", ["llava", "qwen"])
def test_branches_are_read_behind_pictures(kind: str, request: pytest.FixtureRequest) -> None:
    session, pictures = session_of(request.getfixturevalue(kind)), [picture(40, 28), picture(20, 33, 1)]
    assert isinstance(session, TreeSession)
    text = text_with(session, pictures)
    session.see(pictures, text)
    session.forward(text, 0)
    found = session.forward_tree([10, 11], 2, [Branch(12, 0), Branch(13, 2), Branch(14, 1)]).copy()
    assert session.rewind(len(text)) == len(text)
    for tokens, rows in (([10, 11, 14], (0, 1, 4)), ([10, 12, 13], (0, 2, 3))):
        plain = session.forward(tokens, 3)
        assert np.abs(plain - found[list(rows)]).max() < 1e-4
        session.rewind(len(text))


@pytest.mark.parametrize("kind", ["llava", "qwen"])
def test_devices_without_a_decoder_of_our_own_see_the_same(kind: str, request: pytest.FixtureRequest) -> None:
    path, pictures = request.getfixturevalue(kind), [picture(40, 28), picture(20, 33, 1)]
    engine = Torch(path, device="cpu")
    assert engine.seeing
    other, session = RoutedSession(engine.seeing), engine.session()
    assert isinstance(session, PictureSession)
    text = text_with(session, pictures)
    rows = []
    for each in (session, other):
        each.see(pictures, text)
        each.forward(text[:20], 0)
        rows.append(each.forward(text[20:], 5).copy())
    assert np.abs(rows[0] - rows[1]).max() < 1e-4


@pytest.mark.parametrize("kind", ["llava", "qwen"])
def test_rewinds_are_exact_also_without_a_picture(kind: str, request: pytest.FixtureRequest) -> None:
    assert rewind_fault(session_of(request.getfixturevalue(kind)), VOCAB, kept=20) is None


def test_another_picture_in_the_same_place_is_seen(llava: Path) -> None:
    session = session_of(llava)
    cursor, first, second, third = Cursor(session), picture(12, 12, 1), picture(12, 12, 2), picture(12, 12, 3)
    text = text_with(session, [first, second])
    cursor.see([first, second], text)
    before = cursor.read(text).copy()
    cursor.see([first, third], text)
    assert cursor.tokens == text[:15]  # up to the second picture
    changed = cursor.read(text).copy()
    assert np.abs(changed - before).max() > 0.01
    cursor.see([first, second], text)
    assert np.abs(cursor.read(text) - before).max() < 1e-5


def test_the_same_pictures_keep_the_text(llava: Path) -> None:
    session = session_of(llava)
    cursor, seen = Cursor(session), [picture(12, 12, 1)]
    text = text_with(session, seen)
    cursor.see(seen, text)
    cursor.read(text)
    cursor.see([*seen, picture(12, 12, 2)], text)
    assert cursor.tokens == text


def test_a_full_context_is_told(llava: Path) -> None:
    session = session_of(llava)
    session.forward([3] * 250, 0)
    with pytest.raises(ContextFull):
        session.forward([3] * 7, 1)
    assert session.forward([3] * 6, 1).shape == (1, VOCAB)


def test_a_strip_is_refused_where_sides_matter(llava: Path, qwen: Path) -> None:
    strip = picture(804, 4)
    with pytest.raises(PromptError, match="too slim"):
        session_of(qwen).tokens_of(strip)
    assert session_of(llava).tokens_of(strip) == 9


@pytest.mark.parametrize("option", ["exit", "hidden", "skip", "taps", "weights", "decoder"])
def test_options_that_a_model_with_eyes_lacks_are_refused(llava: Path, option: str) -> None:
    values: dict[str, Any] = {"exit": 2, "hidden": True, "skip": True, "taps": "2", "weights": "int8"}
    with pytest.raises(BadValue, match=f"`{option}` does nothing"):
        Torch(llava, device="cpu", **{option: values.get(option, "transformers")})


def copied(path: Path, into: Path, change: Callable[[dict[str, Any]], None], file: str) -> Path:
    shutil.copytree(path, into)
    values = json.loads((into / file).read_text("utf-8"))
    change(values)
    (into / file).write_text(json.dumps(values), encoding="utf-8")
    return into


@pytest.mark.parametrize(
    ("file", "key", "value", "message"),
    [
        ("preprocessor_config.json", "do_resize", False, "`do_resize`"),
        ("preprocessor_config.json", "crop_size", {"height": 8, "width": 12}, "no square"),
        ("preprocessor_config.json", "crop_size", {"height": 8, "width": 8}, "differ"),
        ("preprocessor_config.json", "image_mean", [0.5], "three numbers"),
        ("preprocessor_config.json", "size", {"shortest_edge": "x"}, "shortest_edge"),
        ("config.json", "image_token_index", "x", "image_token_index"),
    ],
)
def test_what_a_folder_says_of_pictures_is_computed_or_refused(
    llava: Path, tmp_path: Path, file: str, key: str, value: Any, message: str
) -> None:
    path = copied(llava, tmp_path / "model", lambda values: values.update({key: value}), file)
    with pytest.raises(LocalspecError, match=message):
        Torch(path, device="cpu")


@pytest.mark.parametrize(
    ("part", "key"), [("text_config", "intermediate_size"), ("vision_config", "intermediate_size")]
)
def test_a_config_of_a_far_larger_model_is_refused(llava: Path, tmp_path: Path, part: str, key: str) -> None:
    def larger(values: dict[str, Any]) -> None:
        values[part][key] = 900_000

    path = copied(llava, tmp_path / "model", larger, "config.json")
    with pytest.raises(BrokenModel, match=f"`{key}` of"):
        Torch(path, device="cpu")


def test_a_folder_without_a_preprocessor_is_refused(llava: Path, tmp_path: Path) -> None:
    path = shutil.copytree(llava, tmp_path / "model")
    (path / "preprocessor_config.json").unlink()
    with pytest.raises(UnsupportedModel, match="preprocessor_config"):
        Torch(path, device="cpu")
