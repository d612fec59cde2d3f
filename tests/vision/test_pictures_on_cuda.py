"""Pictures on a CUDA card: the kernels of its decoder, a recorded look, and the answers of a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from random_models.tiny_vision import picture
from test_reader import COUNT, POSITIONS, SCHEDULES, TEXTS, VISUAL, drawn
from test_seeing import session_of, text_with

from localspec.core.contracts import PictureSession
from localspec.decoder.card import CardDecoder
from localspec.decoder.forward import Decoder
from localspec.decoder.passes import Recorder
from localspec.engines.torch.engine import Torch
from localspec.engines.torch.vision.eyes import RecordedEyes
from localspec.engines.torch.vision.reader import Reader
from localspec.engines.torch.vision.replays import Replays
from localspec.pictures.schedule import Schedule

pytestmark = [pytest.mark.engines, pytest.mark.cuda]

SEEN = [picture(40, 28, 1), picture(20, 33, 2)]
NEAR = 1e-3  # logits and states, in float32


@pytest.fixture(autouse=True)
def exact_convolutions() -> Iterator[None]:
    """Patches are a convolution, which a card rounds to ten bits by default."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def on_card(path: Path, precision: str, **options: Any) -> Any:
    return Torch(path, device="cuda", precision=precision, **options)


def both(path: Path, precision: str) -> list[Reader]:
    """Return readers over the same weights: torch's operations, and kernels."""
    weights = on_card(path, precision).seeing.reader.decoder.weights
    return [Reader(Decoder(weights)), Reader(CardDecoder(weights))]


def read(reader: Reader, texts: int, schedule: Schedule) -> Any:
    """Return the states of prompts, and of what follows before and after tokens are taken back."""
    x, positions = drawn(reader)[:texts].cuda().to(reader.decoder.weights.norm.dtype), POSITIONS.cuda()
    memory, found = reader.memory(64, texts), []
    with torch.inference_mode():
        found.append(reader.read(x[:, :COUNT], positions[:COUNT], memory, VISUAL, schedule))
        found.append(reader.read(x[:, COUNT:], positions[COUNT:], memory))
        memory.cut(5)
        found.append(reader.read(x[:, COUNT + 3 : COUNT + 4], positions[COUNT + 3 : COUNT + 4], memory))
    return torch.cat(found, 1).float()


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("texts", [1, TEXTS])
def test_kernels_read_what_torch_reads(llava: Path, schedule: Schedule, texts: int) -> None:
    plain, ours = (read(reader, texts, schedule) for reader in both(llava, "f32"))
    assert (plain - ours).abs().max() < NEAR


@pytest.mark.parametrize("texts", [1, TEXTS])
def test_kernels_read_what_torch_reads_in_half_precision(llava: Path, texts: int) -> None:
    """With all tokens, since rounding may decide between two that score alike."""
    plain, ours = (read(reader, texts, SCHEDULES["full"]) for reader in both(llava, "bf16"))
    assert (plain - ours).abs().max() < 0.15 * plain.std()


def test_a_card_in_half_precision_reads_by_kernels(llava: Path) -> None:
    engine = on_card(llava, "bf16", vision_tokens="keep=5")
    assert isinstance(engine.seeing.reader.decoder, CardDecoder)
    session = engine.session()
    text = text_with(session, SEEN)
    session.see(SEEN, text)
    assert np.isfinite(session.forward(text, 1)).all()


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_replayed_prompts_are_those_read_one_by_one(llava: Path, schedule: Schedule) -> None:
    reader = both(llava, "f32")[1]
    reads = (reader.read, Replays(reader, Recorder(torch.device("cuda"))).read)
    x, positions = drawn(reader)[:1].cuda(), POSITIONS.cuda()
    with torch.inference_mode():
        for count in (30, 28, 33, 26):  # one shape
            given = (x[:, :count], positions[:count])
            found = [each(*given, reader.memory(64), VISUAL, schedule) for each in reads]
            assert (found[0] - found[1]).abs().max() < NEAR


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("name", ["reroute", "pdrop"])
def test_nothing_waits_for_the_card_while_a_prompt_is_read(llava: Path, name: str) -> None:
    reader = both(llava, "bf16")[1]
    x, positions = drawn(reader)[:, :COUNT].cuda().bfloat16(), POSITIONS[:COUNT].cuda()
    mode = torch.cuda.get_sync_debug_mode()
    with torch.inference_mode():
        reader.read(x, positions, reader.memory(64, TEXTS), VISUAL, SCHEDULES[name])
        torch.cuda.set_sync_debug_mode("error")
        try:
            reader.read(x, positions, reader.memory(64, TEXTS), VISUAL, SCHEDULES[name])
        finally:
            torch.cuda.set_sync_debug_mode(mode)


@pytest.mark.parametrize("options", [{}, {"vision_tokens": "keep=5"}], ids=["all", "fewer"])
@pytest.mark.parametrize("kind", ["llava", "qwen"])
def test_a_card_sees_and_says_what_a_cpu_does(
    kind: str, options: dict[str, str], request: pytest.FixtureRequest
) -> None:
    path, found = request.getfixturevalue(kind), []
    for session in (session_of(path, **options), on_card(path, "f32", **options).session()):
        assert isinstance(session, PictureSession)
        text = text_with(session, SEEN)
        session.see(SEEN, text)
        found.append([session.forward(text, 1).copy(), session.forward([11, 12], 2).copy()])
    for expected, ours in zip(*found, strict=True):
        assert np.abs(np.asarray(expected) - np.asarray(ours)).max() < NEAR


def test_each_picture_is_seen_by_the_recorded_eyes(llava: Path) -> None:
    engine = on_card(llava, "f32")
    plain = Torch(llava, device="cpu").seeing
    assert plain
    pictures = [picture(12, 12, seed) for seed in range(4)]
    seen = [engine.seeing.look(each).states for each in pictures]
    assert isinstance(engine.seeing._recorded, RecordedEyes)
    for each, states in zip(pictures, seen, strict=True):
        assert (states.cpu() - plain.look(each).states).abs().max() < NEAR
