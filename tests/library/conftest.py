"""A hub on loopback, a library in a temporary folder, and a fake converter."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import gguf
import loopback
import numpy as np
import pytest

from localspec.library import Library


class RecordedProgress:
    """Records what it is told."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.lines: list[str] = []
        self.bytes = 0

    def step(self, title: str, total: int | None = None, unit: str = "") -> AbstractContextManager[None]:
        self.steps.append(title)
        return nullcontext()

    def advance(self, count: int = 1) -> None:
        self.bytes += count

    def say(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[loopback.Hub]:
    """A hub that huggingface_hub talks to, with a cache and no token of its own."""
    with loopback.serving_hub() as found:
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub cache"))
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no token"))
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        yield found


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace the waits by a list of their seconds."""
    found: list[float] = []
    monkeypatch.setattr("localspec.library.download.retry.sleep", found.append)
    return found


@pytest.fixture
def said() -> RecordedProgress:
    return RecordedProgress()


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "löcal spec 数")


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the converter by one that writes two small files; return the list of its calls."""
    calls: list[str] = []

    def import_weights(source: Any, into: Path, progress: Any) -> dict[str, str]:
        calls.append(source.architecture)
        (into / "openvino_model.xml").write_text("<net/>")
        (into / "openvino_model.bin").write_bytes(bytes(1000))
        return {"precision": "int4"}

    module = types.ModuleType("localspec.formats.graph.ir")
    module.import_weights = import_weights  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "localspec.formats.graph.ir", module)
    return calls


Maker = Callable[[Path], Path]


@pytest.fixture(scope="session")
def make_gguf() -> Maker:
    """Write a GGUF file with a vocabulary of bytes, a chat template and one tensor."""
    return write_gguf


def write_gguf(path: Path, seed: int = 0) -> Path:
    letters = [*"abcdefgh", "ab", "<|endoftext|>", "<|im_end|>"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(letters)
    writer.add_token_types([1] * 9 + [3] * 2)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(9)
    writer.add_eos_token_id(10)
    writer.add_add_bos_token(True)
    writer.add_chat_template(
        "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    )
    writer.add_float32("general.sampling.temp", 0.5)
    writer.add_tensor("token_embd.weight", np.full((11, 64), seed, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
