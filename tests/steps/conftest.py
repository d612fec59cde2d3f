"""A tiny model whose inner layers are idle, texts that it wrote, and a build context."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
from build_context import IDLE, LAYERS, FakeContext

from localspec.drafting.build_step import Artifact, TargetText
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph.ir import import_weights
from localspec.formats.graph.paged import read_stateful
from localspec.formats.graph.runner import GraphRunner
from localspec.library import Silent
from localspec.library.importing import convert


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("source")
    model = tiny.make("llama", "Q8_0", layers=LAYERS, interleaved=True, seed=3)
    for layer in IDLE:
        for part in ("attn_output", "ffn_down"):
            name = f"blk.{layer}.{part}.weight"
            model.put(name, "Q8_0", np.zeros_like(model.stored[name]))
    path = tiny.write_gguf(model, folder / "tiny.gguf")
    convert.from_gguf(path, folder)
    import_weights(GgufFile.open(path), folder, Silent(), plain=True)
    return Artifact(folder, {})


@pytest.fixture(scope="session")
def texts(source: Artifact) -> list[TargetText]:
    """Greedy answers of the model itself."""
    runner = GraphRunner(read_stateful(source.folder / "openvino_model.xml"))
    found = []
    for prompt in ([3, 1, 4], [1, 5, 9, 2], [65, 35], [8, 9, 7, 9]):
        answer: list[int] = []
        for _ in range(24):
            answer.append(int(runner.logits([*prompt, *answer])[-1].argmax()))
        found.append(TargetText(prompt, answer))
    return found


@pytest.fixture
def context(texts: list[TargetText], source: Artifact, tmp_path: Path) -> FakeContext:
    kept = tmp_path / "kept"
    kept.mkdir()
    return FakeContext(texts, [1.0 + 0.02 * more for more in range(9)], source.folder / "tiny.gguf", kept)


@pytest.fixture
def into(tmp_path: Path) -> Path:
    folder = tmp_path / "into"
    folder.mkdir()
    return folder
