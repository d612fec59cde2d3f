"""Time an answer about a picture on torch and on OpenVINO, and what reading embeddings costs a text.

    PYTHONPATH=. python tests/perf/pictures.py --work DIR

The model has SmolLM2-135M's shape and CLIP ViT-B/16's eyes, with random weights. Runs of both engines take
turns; each is about another picture.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import numpy as np  # noqa: E402
from random_models import tiny_vision  # noqa: E402

from localspec.core.contracts import Engine, PictureSession, Session  # noqa: E402
from localspec.core.cursor import Cursor  # noqa: E402
from localspec.core.types import Prompt  # noqa: E402
from localspec.engines.openvino import OpenVino  # noqa: E402
from localspec.engines.torch import Torch  # noqa: E402
from localspec.formats.vision import stored  # noqa: E402
from localspec.library import Library, Silent  # noqa: E402
from localspec.library.importing.add_local import add_local  # noqa: E402

TEXT = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "max_position_embeddings": 2048,
}
EYES = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 16,
}
PIXELS = {"size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224}, "do_center_crop": True}
WORDS, ANSWER = 24, 48  # tokens of text in a prompt, tokens of an answer


def made(into: Path) -> Path:
    """Write the model, if it is not there."""
    import torch
    import transformers

    if not into.is_dir():
        torch.manual_seed(0)
        config = transformers.LlavaConfig(
            vision_config=transformers.CLIPVisionConfig(**EYES),
            text_config=transformers.LlamaConfig(**TEXT, bos_token_id=None, pad_token_id=None),
            image_token_index=tiny_vision.TOKEN,
            tie_word_embeddings=True,
        )
        model = transformers.LlavaForConditionalGeneration(config).half()
        tiny_vision.saved(model, into, PIXELS, tiny_vision.PART)
    return into


def answered(session: Session, seed: int) -> tuple[float, float]:
    """Return the seconds to the first token about a new picture, and the tokens a second after it."""
    assert isinstance(session, PictureSession)
    picture = tiny_vision.picture(640, 480, seed)
    words = [(seed * 7 + at) % 32 for at in range(WORDS)]
    visual = [session.picture_token] * session.tokens_of(picture)
    text = Prompt([*words[: WORDS // 2], *visual, *words[WORDS // 2 :]], [picture])
    cursor, tokens = Cursor(session), list(text)
    started = perf_counter()
    cursor.see(text.pictures, text)
    tokens.append(int(cursor.read(tokens)[0].argmax()))
    first = perf_counter()
    for _ in range(ANSWER - 1):
        tokens.append(int(cursor.read(tokens)[0].argmax()))
    cursor.see([], [])
    session.rewind(0)
    return first - started, (ANSWER - 1) / (perf_counter() - first)


def passes(sessions: dict[str, Session], count: int = 300) -> dict[str, list[float]]:
    """Return the seconds of passes over one token, after WORDS others; the sessions take turns by passes."""
    found: dict[str, list[float]] = {name: [] for name in sessions}
    for session in sessions.values():
        session.rewind(0)
        session.forward(range(WORDS), 0)
    for token in range(count):
        for name, session in sessions.items():
            started = perf_counter()
            session.forward([token % 32], 1)
            found[name].append(perf_counter() - started)
    return found


def in_turns(runs: int, sessions: dict[str, Any], run: Callable[[Any, int], Any]) -> dict[str, list[Any]]:
    """Return what `run` gave for each session, `runs` times in turns, after a run that does not count."""
    found: dict[str, list[Any]] = {name: [] for name in sessions}
    for at in range(runs + 1):
        for name, session in sessions.items():
            result = run(session, at)
            found[name] += [result] if at else []
    return found


def without_eyes(folder: Path, into: Path) -> Path:
    """Return a copy of an OpenVINO folder whose graph is one of text."""
    shutil.copytree(folder, into, dirs_exist_ok=True)
    (into / stored.FILE).unlink(missing_ok=True)
    return into


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    path = made(given.work / "llava")
    library = Library(given.work / "home")
    model = library.find("timed") or add_local(library, path, "timed", Silent())
    engines: dict[str, Engine] = {"torch": Torch(path, device="cpu"), "openvino": OpenVino(model.folder)}
    sessions = {name: engine.session() for name, engine in engines.items()}
    for name, found in in_turns(given.runs, sessions, answered).items():
        first, speed = (sorted(column) for column in zip(*found, strict=True))
        print(
            f"{name}: first token after {median(first):.2f} s ({first[0]:.2f}-{first[-1]:.2f}), then "
            f"{median(speed):.1f} tokens/s ({speed[0]:.1f}-{speed[-1]:.1f})"
        )
    plain = OpenVino(without_eyes(model.folder, given.work / "plain"))
    both = {"graph of text": plain.session(), "graph with embeddings": sessions["openvino"]}
    found = passes(both)
    for name, times in found.items():
        print(f"{name}: {1e3 * median(times):.2f} ms a token, {1e3 * min(times):.2f} at best")
    text, seeing = (np.array(times) for times in found.values())
    print(f"ratio of two passes in turn: {np.median(seeing / text):.3f}")


if __name__ == "__main__":
    main()
