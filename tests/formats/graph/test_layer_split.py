"""A paged graph split in three parts: where, what each part holds, and what is rejected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny

from localspec.errors import BadValue, UnsupportedModel
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph import layer_split
from localspec.formats.graph.ir import import_weights
from localspec.formats.graph.paged import read_all_rows
from localspec.library import Silent


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def graph(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    model = tiny.make(request.param, "Q8_0", interleaved=request.param == "llama")
    import_weights(GgufFile.open(tiny.write_gguf(model, path / "a.gguf")), path, Silent())
    return path / "openvino_model.xml"


def kinds(model: Any, name: str) -> list[Any]:
    return [node for node in model.get_ops() if node.get_type_name() == name]


def weight(model: Any) -> int:
    """Return the bytes of a graph's large constants."""
    sizes = [node.get_byte_size() for node in kinds(model, "Constant")]
    return sum(size for size in sizes if size > 2000)


def test_layers_are_entered_by_the_residual_stream_alone(graph: Path) -> None:
    entering = layer_split.residual(read_all_rows(graph))
    assert len(entering) == tiny.LAYERS + 1
    assert entering[0].get_node().get_type_name() == "Gather"
    for port in entering:
        assert port.get_partial_shape()[2].get_length() == tiny.WIDTH


def test_each_weight_is_in_one_part(graph: Path) -> None:
    whole = weight(read_all_rows(graph))
    parts = layer_split.split(read_all_rows(graph), 1)
    assert sum(map(weight, parts)) == whole
    assert [len(layer_split.attentions(part)) for part in parts] == [1, 1, 0]
    assert all(weight(part) > 0 for part in parts)
    caches = [{port.any_name for port in part.inputs if "_cache" in port.any_name} for part in parts]
    assert [len(names) for names in caches] == [2, 2, 0]
    assert caches[0].isdisjoint(caches[1])


@pytest.mark.parametrize("layer", [0, 2, 9])
def test_invalid_exit_layers(graph: Path, layer: int) -> None:
    with pytest.raises(BadValue, match=f"Cannot exit after layer {layer}: the model has 2 layers"):
        layer_split.split(read_all_rows(graph), layer)


def test_a_graph_without_layers_is_refused(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_split, "ATTENTION", "Softmax")
    with pytest.raises(UnsupportedModel, match="cannot be told apart") as caught:
        layer_split.split(read_all_rows(graph), 1)
    assert caught.value.hint


def test_the_number_of_layers_is_checked(tmp_path: Path) -> None:
    gguf = tiny.write_gguf(tiny.make("llama"), tmp_path / "a.gguf")
    nested = {"text_config": {"num_hidden_layers": 2}}
    for model, config in ((gguf, None), (tmp_path, {"num_hidden_layers": 2}), (tmp_path, nested)):
        if config:
            (tmp_path / "config.json").write_text(json.dumps(config))
        layer_split.check(model, 1)
        with pytest.raises(BadValue, match="the model has 2 layers"):
            layer_split.check(model, 2)
    (tmp_path / "config.json").write_text("{}")
    layer_split.check(tmp_path, 99)
    (tmp_path / "config.json").unlink()
    layer_split.check(tmp_path, 99)
