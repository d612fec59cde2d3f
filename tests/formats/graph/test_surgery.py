"""Removing layers and head rows of a graph leaves the rest bit-identical."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from localspec.engines.openvino.engine import OpenVino
from localspec.errors import BadValue, UnsupportedModel
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph import surgery
from localspec.formats.graph.ir import import_weights, save
from localspec.formats.graph.paged import read_stateful
from localspec.library import Silent

TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
KEPT = np.array([0, 1, 5, 40, 41, 90, 94, 95])


def imported(model: tiny.Tiny, folder: Path, **how: Any) -> Path:
    folder.mkdir(exist_ok=True)
    import_weights(GgufFile.open(tiny.write_gguf(model, folder / "a.gguf")), folder, Silent(), **how)
    return folder


def cut(source: Path, into: Path, how: Any) -> Path:
    model = read_stateful(source / "openvino_model.xml")
    how(model)
    into.mkdir()
    save(model, into)
    (into / "config.json").write_text((source / "config.json").read_text())
    return into


def rows(folder: Path) -> Any:
    """Return the logits of a text that is read as a prompt, in a short pass, rewound and token by token."""
    session = OpenVino(folder).session()
    found = [session.forward(TEXT[:6], 6).copy(), session.forward(TEXT[6:9], 3).copy()]
    session.rewind(7)
    found += [session.forward([token], 1).copy() for token in TEXT[7:]]
    return np.concatenate(found)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dropped", [{1}, {1, 2}, {0}, {3}])
def test_a_pruned_graph_equals_the_graph_of_a_pruned_model(
    family: str, dropped: set[int], tmp_path: Path
) -> None:
    model = tiny.make(family, "Q8_0", layers=4, interleaved=family == "llama")
    source = imported(model, tmp_path / "whole")
    fewer = cut(source, tmp_path / "cut", lambda graph: surgery.drop_layers(graph, dropped))
    assert np.array_equal(rows(fewer), rows(imported(tiny.without(model, dropped), tmp_path / "fewer")))
    assert surgery.count_layers(read_stateful(fewer / "openvino_model.xml")) == 4 - len(dropped)


def test_removed_weights_are_not_in_the_file(tmp_path: Path) -> None:
    source = imported(tiny.make("llama", "Q8_0", layers=4), tmp_path / "whole")
    fewer = cut(source, tmp_path / "cut", lambda graph: surgery.drop_layers(graph, {1, 2}))
    sizes = [(folder / "openvino_model.bin").stat().st_size for folder in (source, fewer)]
    assert sizes[1] < 0.62 * sizes[0]
    assert len(read_stateful(fewer / "openvino_model.xml").get_sinks()) == 4


@pytest.mark.parametrize("layer", [-1, 4])
def test_a_missing_layer_cannot_be_dropped(layer: int, tmp_path: Path) -> None:
    source = imported(tiny.make("llama", "Q8_0", layers=4), tmp_path)
    with pytest.raises(BadValue, match="4 layers"):
        surgery.drop_layers(read_stateful(source / "openvino_model.xml"), {layer})


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "F32", "plain"])
@pytest.mark.parametrize("tied", [True, False])
def test_kept_tokens_keep_their_logits_and_others_are_never_guessed(
    kind: str, tied: bool, tmp_path: Path
) -> None:
    plain = kind == "plain"
    model = tiny.make("llama", "Q8_0" if plain else kind, tied=tied)
    source = imported(model, tmp_path / "whole", offsets=True, plain=plain)
    trimmed = cut(source, tmp_path / "cut", lambda graph: surgery.trim_head(graph, KEPT))
    whole, found = rows(source), rows(trimmed)
    others = np.setdiff1d(np.arange(tiny.VOCAB), KEPT)
    assert found.shape == whole.shape
    assert np.array_equal(found[:, KEPT], whole[:, KEPT])
    assert (found[:, others] == surgery.NEVER).all()


def test_hidden_states_are_those_of_a_shorter_model(tmp_path: Path) -> None:
    import openvino as ov

    model = tiny.make("llama", layers=3, interleaved=True)
    graph = read_stateful(imported(model, tmp_path) / "openvino_model.xml")
    names = surgery.show_hidden(graph)
    assert names == ["hidden.0", "hidden.1", "hidden.2", "hidden.3"]
    exact = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    shown = ov.Core().compile_model(graph, "CPU", exact).create_infer_request().infer(inputs(TEXT))
    states = [shown[name][0] for name in names]
    head, norm = model.values["output.weight"], model.values["output_norm.weight"]
    wanted = tiny.logits(tiny.without(model, {2}), TEXT)
    assert np.allclose(tiny.normed(states[2].astype(float), norm) @ head.T, wanted, atol=1e-3)
    assert np.allclose(states[0], model.values["token_embd.weight"][TEXT], atol=1e-5)


def inputs(text: list[int]) -> dict[str, Any]:
    count = len(text)
    return {
        "input_ids": np.array([text]),
        "attention_mask": np.ones((1, count), np.int64),
        "position_ids": np.arange(count)[None],
        "beam_idx": np.zeros(1, np.int32),
    }


def test_a_head_of_another_kind_keeps_all_tokens(tmp_path: Path) -> None:
    from openvino import opset13 as ops

    graph = read_stateful(imported(tiny.make("llama", "Q8_0"), tmp_path) / "openvino_model.xml")
    result = graph.output("logits").get_node()
    last = result.input_value(0)
    other = ops.relu(last).output(0)
    result.input(0).replace_source_output(other)
    last.get_tensor().set_names(set())
    other.get_tensor().set_names({"logits"})
    with pytest.raises(UnsupportedModel, match="ends in `Relu`"):
        surgery.trim_head(graph, KEPT)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "Q6_K"])
def test_plain_weights_are_the_dequantized_ones(kind: str, tmp_path: Path) -> None:
    model = tiny.make("llama", kind, interleaved=True)
    session = OpenVino(imported(model, tmp_path, plain=True)).session()
    assert np.allclose(session.forward(TEXT, len(TEXT)), tiny.logits(model, TEXT), atol=0.02)
