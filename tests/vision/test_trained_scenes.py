"""The trained toy on scenes that it has not seen: as a user asks it, and with fewer visual tokens."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest
import scenes
import torch
from answered import answered
from PIL import Image
from scenes import TASKS

from localspec import pictures
from localspec.chat import Chat
from localspec.core.sampler import Sampling
from localspec.engines.torch.engine import Torch
from localspec.library import Library, Silent
from localspec.pictures.schedule import Schedule, by_mean
from localspec.runtime.choice import Choice
from localspec.runtime.generation import Runtime

TOY = Path(__file__).parents[1] / "data" / "vision" / "toy"
SCENES = 192


def drawn(count: int, seed: int) -> tuple[list[str], scenes.Asked]:
    """Return scenes as PNG in base64, and one question of each task about each."""
    numbers = torch.Generator().manual_seed(seed)
    found = scenes.scenes(count, numbers, scenes.SMALL)
    images = []
    for picture in (found.pictures * 255).round().byte().permute(0, 2, 3, 1).numpy():
        into = io.BytesIO()
        Image.fromarray(picture).save(into, "PNG")
        images.append(base64.b64encode(into.getvalue()).decode())
    return images, scenes.ask(found, len(TASKS), numbers)


def words(tokens: Any) -> str:
    """Return what tokens say, up to the end."""
    said = [scenes.WORDS[token] for token in tokens]
    return " ".join(said[: said.index("</s>")] if "</s>" in said else said)


@pytest.mark.parametrize("engine", ["openvino", "torch:device=cpu"])
@pytest.mark.parametrize("draft", ["off", "auto"])
def test_a_user_is_told_how_many_there_are(
    draft: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    runtime = Runtime.load(str(TOY), Choice(engine, draft), Library(), Silent())
    images, asked = drawn(8, 11)
    counted, right = TASKS.index("count"), 0
    for image, questions, answers in zip(images, asked.questions, asked.answers, strict=True):
        chat = Chat(runtime, sampling=Sampling(), max_tokens=8)
        said = chat.send(words(questions[counted]), [image]).text.strip()
        right += said == words(answers[counted])
    assert right >= 7


@pytest.fixture(scope="module")
def seen() -> tuple[Torch, Any, scenes.Asked]:
    """The toy, and what it sees of scenes, [scenes, patches, width]."""
    images, asked = drawn(SCENES, 12)
    engine = Torch(TOY, device="cpu")
    assert engine.seeing
    return (
        engine,
        torch.stack([engine.seeing.look(pictures.of_text(image)).states for image in images]),
        asked,
    )


def boxes(seen: tuple[Torch, Any, scenes.Asked], schedule: Schedule) -> float:
    """Return the share of boxes that overlap the right one by half or more."""
    engine, states, asked = seen
    assert engine.seeing
    box = TASKS.index("box")
    with torch.inference_mode():
        found = answered(engine.seeing.reader, states, asked.questions[:, box], schedule)
    tasks = torch.full((len(states),), box)
    return float(scenes.correct(found, asked.answers[:, box], tasks).float().mean())


def test_rerouted_tokens_ground_better_than_pruned_ones(seen: tuple[Torch, Any, scenes.Asked]) -> None:
    """With 70 % fewer visual tokens on average, in the same layers and as many."""
    full, patches = Schedule(), scenes.SMALL.patches
    share = {
        method: boxes(seen, by_mean(0.3 * patches, method, 4, patches)) for method in ("reroute", "pdrop")
    }
    assert boxes(seen, full) > 0.5
    assert share["reroute"] >= share["pdrop"] + 0.05
