"""The simplified graph: kept once, the same rows bit for bit, and never in the way when it cannot be used."""

from __future__ import annotations

import gc
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from build_context import FakeContext

from localspec import plugins
from localspec.disk import records
from localspec.drafting.build_step import Artifact
from localspec.engines.openvino import compile_cache, page_release
from localspec.engines.openvino.engine import OpenVino
from localspec.errors import BrokenModel
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph.ir import import_weights
from localspec.library import Silent
from localspec.library.importing import convert

TEXT = list(range(3, 63))


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    import_weights(
        GgufFile.open(tiny.write_gguf(tiny.make("llama", "Q4_K"), path / "a.gguf")), path, Silent()
    )
    return path


@pytest.fixture
def model(imported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(imported, tmp_path / "model"))


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "cpu"


def logits_of(model: Path, kept: Path, **options: Any) -> Any:
    """Read a text across two blocks of the cache, in passes of several widths, with a rewind."""
    session = OpenVino(model, kept.parent, **options).session()
    found = [session.forward(TEXT[at : at + 20], 20).copy() for at in (0, 20, 40)]
    session.rewind(25)
    found += [session.forward(TEXT[at : at + size], size).copy() for at, size in ((25, 7), (32, 1), (33, 1))]
    return np.concatenate(found)


def graphs(kept: Path) -> list[str]:
    return sorted(path.name for path in kept.iterdir())


@pytest.fixture
def read_before(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note each full graph that is read: a start from a simplified one reads none."""
    seen: list[str] = []
    full: Callable[..., Any] = compile_cache.read_paged
    monkeypatch.setattr(
        compile_cache, "read_paged", lambda path, **more: [seen.append(path.name), full(path, **more)][1]
    )
    return seen


@pytest.mark.parametrize("options", [{}, {"group": 0, "kv": "f32"}, {"kv": "u8"}, {"precision": "bf16"}])
def test_the_second_start_gives_the_same_rows(
    model: Path, kept: Path, read_before: list[str], options: dict[str, Any]
) -> None:
    first = logits_of(model, kept, **options)
    assert len(graphs(kept)) == 1
    assert read_before == ["openvino_model.xml"]
    assert np.array_equal(logits_of(model, kept, **options), first)
    assert read_before == ["openvino_model.xml"]


@pytest.mark.parametrize("zero", ["off", "on"])
def test_four_bits_stay_four_bits(kept: Path, read_before: list[str], tmp_path: Path, zero: str) -> None:
    """A draft that was built: what the plug-in reads as eight bits has other rows, and is not kept."""
    source, model = tmp_path / "source", tmp_path / "model"
    source.mkdir()
    model.mkdir()
    path = tiny.write_gguf(tiny.make("llama", "Q8_0"), source / "a.gguf")
    convert.from_gguf(path, source)
    import_weights(GgufFile.open(path), source, Silent(), plain=True)
    step = plugins.parse("steps", f"quantize:bits=4,group=32,zero={zero}").make(FakeContext([], []))
    step.run(Artifact(source, {}), model)
    first = logits_of(model, kept)
    assert np.array_equal(logits_of(model, kept), first)
    assert read_before == ["openvino_model.xml"]
    assert len(graphs(kept)) == 1


def test_weights_are_not_kept_twice(model: Path, kept: Path) -> None:
    logits_of(model, kept)
    (name,) = graphs(kept)
    shared = (kept / name / compile_cache.GRAPH).read_text().count('name="shared@')
    assert shared >= 2 * 4  # the products of two layers: q k v, output, gate up, down


def test_threads_share_a_graph_and_settings_do_not(model: Path, kept: Path) -> None:
    for options in ({}, {"threads": 1}, {"kv": "f32"}):
        logits_of(model, kept, **options)
    assert len(graphs(kept)) == 2


@pytest.mark.parametrize("name", [compile_cache.GRAPH, compile_cache.CONSTANTS, compile_cache.HEADS])
def test_a_graph_that_was_cut_is_made_again(
    model: Path, kept: Path, name: str, read_before: list[str]
) -> None:
    first = logits_of(model, kept)
    (graph,) = graphs(kept)
    content = (kept / graph / name).read_bytes()
    (kept / graph / name).write_bytes(content[: len(content) // 2])
    assert np.array_equal(logits_of(model, kept), first)
    assert len(read_before) == 2
    assert len((kept / graph / name).read_bytes()) > len(content) // 2


@pytest.mark.parametrize("name", [compile_cache.GRAPH, compile_cache.CONSTANTS, compile_cache.HEADS])
def test_flipped_bits_in_a_kept_graph_are_found(
    model: Path, kept: Path, name: str, read_before: list[str]
) -> None:
    first = logits_of(model, kept)
    (graph,) = graphs(kept)
    file = kept / graph / name
    size = records.read(file.with_name(compile_cache.DIGESTS))["size"]
    content = bytearray(file.read_bytes())
    draw = random.Random(name)
    for _ in range(10):
        content[draw.randrange(min(len(content), size))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)
    assert np.array_equal(logits_of(model, kept), first)
    assert len(read_before) == 2  # the graph was made again


def test_a_changed_model_has_a_graph_of_its_own(model: Path, kept: Path, tmp_path: Path) -> None:
    logits_of(model, kept)
    other = tmp_path / "other"
    other.mkdir()
    import_weights(
        GgufFile.open(tiny.write_gguf(tiny.make("llama", "Q4_K", seed=1), tmp_path / "b.gguf")),
        other,
        Silent(),
    )
    expected = logits_of(other, kept)
    shutil.copytree(other, model, dirs_exist_ok=True)
    assert np.array_equal(logits_of(model, kept), expected)
    assert len(graphs(kept)) >= 2


def test_only_so_many_graphs_of_a_model_are_kept(
    model: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_cache, "MAX_GRAPHS", 2)
    others = kept.parent / "npu"  # another engine's, which are not ours to forget
    others.mkdir(parents=True)
    for group in (0, 32, 64):
        logits_of(model, kept, group=group)
    assert len(graphs(kept)) == 2
    assert others.is_dir()


def test_a_graph_with_other_rows_is_not_kept(
    model: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried once: to make it takes longer than to start without it."""
    take_apart = compile_cache.compile_and_take_apart
    tried: list[bool] = []

    def wrong(*arguments: Any) -> Any:
        tried.append(True)
        found, write = take_apart(*arguments)

        def spoiled(folder: Path) -> int:
            size = int(write(folder))
            file = folder / compile_cache.GRAPH
            found, changes = re.subn(r'epsilon="[^"]+"', 'epsilon="0.5"', file.read_text())
            assert changes == 5  # norms of two layers, and the last
            file.write_text(found)
            return size

        return found, spoiled

    monkeypatch.setattr(compile_cache, "compile_and_take_apart", wrong)
    assert np.array_equal(logits_of(model, kept), logits_of(model, kept))
    assert tried == [True]
    assert not any(path.is_dir() for path in kept.iterdir())


def test_a_full_disk_or_little_memory_keeps_nothing(
    model: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = logits_of(model, kept)
    shutil.rmtree(kept)
    monkeypatch.setattr(compile_cache, "_room", lambda folder, weights: False)
    assert np.array_equal(logits_of(model, kept), expected)
    assert not kept.exists()


def test_a_folder_that_is_no_graph_is_refused(tmp_path: Path) -> None:
    import openvino as ov

    with pytest.raises(BrokenModel, match="is damaged or incomplete"):
        compile_cache.read_simplified(ov.Core(), tmp_path, tmp_path / "openvino_model.bin")


def test_a_start_is_never_stopped_by_what_cannot_be_kept(
    model: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = logits_of(model, kept)
    shutil.rmtree(kept)
    for error in (RuntimeError("disk full"), ValueError("another format")):

        def broken(*arguments: Any, error: Exception = error) -> Any:
            if isinstance(error, RuntimeError):
                raise error
            core, graph, settings = arguments[:3]
            return core.compile_model(graph, "CPU", settings), failing

        def failing(folder: Path, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(compile_cache, "compile_and_take_apart", broken)
        assert np.array_equal(logits_of(model, kept), expected)
        assert graphs(kept) == []


@pytest.mark.parametrize("options", [{}, {"hidden": True}, {"exit": 1}, {"group": 0}])
@pytest.mark.parametrize("starts", [1, 2])
def test_the_mapping_outlives_every_pass_that_releases_it(
    model: Path, kept: Path, options: dict[str, Any], starts: int
) -> None:
    """Addresses that something else had taken over would be zeroed."""
    for _ in range(starts):  # the second has a kept graph
        engine = OpenVino(model, kept.parent, **options)
    gc.collect()
    before = page_release._spans(model / "openvino_model.bin")
    assert before
    session = engine.session()
    for tokens in ([1, 2, 3], [4]):
        session.forward(tokens, 1)
        gc.collect()
        assert page_release._spans(model / "openvino_model.bin") == before
