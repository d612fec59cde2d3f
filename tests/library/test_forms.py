"""A model in the forms that engines read: a GGUF that stays one, and becomes a graph when one is wanted."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny

from localspec.errors import UnsupportedModel
from localspec.library import Library, Silent

ANY = ("openvino", "gguf")


class Said(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture
def home(tmp_path: Path) -> Library:
    return Library(tmp_path / "home")


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return tiny.write_gguf(tiny.make("llama", "Q8_0"), tmp_path / "small.gguf")


@pytest.fixture
def unknown(tmp_path: Path) -> Path:
    """A model whose tokens see only the last 16: OpenVINO's import refuses it."""
    return tiny.write_gguf(
        tiny.make("llama", "Q8_0"), tmp_path / "windowed.gguf", attention__sliding_window=16
    )


def test_an_engine_that_reads_gguf_needs_no_conversion(home: Library, gguf: Path) -> None:
    model = home.resolve(str(gguf), Silent(), ("gguf",))
    assert model.form("openvino") is None
    assert model.form("gguf") == gguf
    assert model.path_for("llamacpp", ("gguf",)) == gguf
    assert model.manifest.precision == "Q8_0"
    assert model.tokenizer().get_vocab_size() > 90
    assert model.stop_tokens() == [94, 95]
    assert not list(model.folder.glob("*.xml"))


def test_a_graph_is_added_when_it_is_wanted(home: Library, gguf: Path) -> None:
    before = home.resolve(str(gguf), Silent(), ("gguf",))
    with pytest.raises(UnsupportedModel, match=r"`openvino` reads openvino and .* has gguf"):
        before.path_for("openvino", ("openvino",))
    after = home.resolve(str(gguf), Silent(), ("openvino",))
    assert (after.name, after.folder) == (before.name, before.folder)
    assert after.form("openvino") == after.folder
    assert after.form("gguf") == gguf
    assert {"openvino_model.xml", "openvino_model.bin", "config.json"} <= set(after.manifest.sizes)
    assert set(after.manifest.sizes) <= set(after.manifest.digests)
    assert [model.name for model in home.all()] == [after.name]
    found = home.find(after.name)
    assert found is not None
    assert found.form("openvino")


def test_what_openvino_cannot_read_stays_a_gguf_and_is_said(home: Library, unknown: Path) -> None:
    said = Said()
    model = home.resolve(str(unknown), said, ANY)
    assert model.form("openvino") is None
    assert model.form("gguf") == unknown
    assert any("sliding window" in line for line in said.lines)
    again = Said()
    assert home.resolve(model.name, again, ANY).form("gguf") == unknown


def test_what_openvino_cannot_read_is_refused_where_nothing_else_will_do(
    home: Library, unknown: Path
) -> None:
    with pytest.raises(UnsupportedModel, match="sliding window"):
        home.resolve(str(unknown), Silent())
    assert home.all() == []


def test_a_failed_graph_leaves_the_model_as_it_was(
    home: Library, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from localspec.formats.graph import ir

    model = home.resolve(str(gguf), Silent(), ("gguf",))
    before = sorted(path.name for path in model.folder.iterdir())

    def full(graph: object, into: Path) -> None:
        (into / "openvino_model.bin").write_bytes(bytes(10))
        raise KeyboardInterrupt

    monkeypatch.setattr(ir, "save", full)
    with pytest.raises(KeyboardInterrupt):
        home.resolve(str(gguf), Silent())
    assert sorted(path.name for path in model.folder.iterdir()) == before
    assert home.find(model.name) is not None
    assert not list(home.models.glob("*.partial-*"))


def test_a_folder_of_safetensors_is_read_where_it_lies(home: Library, tmp_path: Path) -> None:
    import shutil

    from localspec.formats.gguf.file import GgufFile
    from localspec.formats.tokenizer import vocabulary

    folder = tmp_path / "hf"
    folder.mkdir()
    tiny.write_folder(tiny.make("llama"), folder)
    source = GgufFile.open(tiny.write_gguf(tiny.make("llama"), tmp_path / "v.gguf"))
    vocabulary.from_gguf(source.metadata).save(str(folder / "tokenizer.json"))
    model = home.resolve(str(folder), Silent(), ("safetensors", "gguf"))
    assert model.form("safetensors") == folder
    assert model.form("openvino") is None
    assert model.cache_bytes() == 2 * 2 * tiny.LAYERS * tiny.KEY_HEADS * tiny.HEAD_WIDTH
    shutil.rmtree(folder)
    assert model.form("safetensors") is None


def test_a_gguf_says_how_much_a_token_takes_in_the_cache(home: Library, gguf: Path) -> None:
    expected = 2 * 2 * tiny.LAYERS * tiny.KEY_HEADS * tiny.HEAD_WIDTH
    assert home.resolve(str(gguf), Silent(), ("gguf",)).cache_bytes() == expected
    assert home.resolve(str(gguf), Silent()).cache_bytes() == expected
