"""Reading heads: the published layouts, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from random_heads import KEPT, TAPS, random_tensors, write_head, write_speculators

from localspec.errors import BrokenModel, LocalspecError, UnsupportedModel
from localspec.formats.heads import layout


def test_the_published_layout_is_read(tmp_path: Path) -> None:
    tensors = random_tensors()
    found = layout.read(write_head(tmp_path / "head", tensors))
    tokens = np.arange(KEPT) + tensors["d2t"]
    order = np.argsort(tokens)
    assert found.shape.taps == TAPS
    assert (found.shape.kept, found.shape.vocab) == (KEPT, tiny.VOCAB)
    assert found.tokens.tolist() == sorted(tokens.tolist())
    assert np.array_equal(
        found.tensors["lm_head.weight"], tensors["lm_head.weight"][order].astype(np.float32)
    )
    assert not found.shape.norms_residual
    assert found.embedding is None
    assert layout.is_head(tmp_path / "head")


def test_the_layout_of_speculators_is_the_same_head(tmp_path: Path) -> None:
    tensors = random_tensors()
    one = layout.read(write_head(tmp_path / "one", tensors, norm_before_residual=True))
    other = layout.read(write_speculators(tmp_path / "other", tensors))
    assert layout.is_head(tmp_path / "other")
    assert other.shape.norms_residual
    assert (one.shape.taps, one.shape.sizes) == (other.shape.taps, other.shape.sizes)
    assert all(np.array_equal(one.tensors[name], other.tensors[name]) for name in one.tensors)
    assert not layout.read(
        write_speculators(tmp_path / "third", tensors, norm_before_residual=False)
    ).shape.norms_residual


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    found = layout.read(write_head(tmp_path / "head", random_tensors()))
    (tmp_path / "again").mkdir()
    layout.write(found, tmp_path / "again")
    again = layout.read(tmp_path / "again")
    assert again.tokens.tolist() == found.tokens.tolist() == layout.read_tokens(tmp_path / "again").tolist()
    assert all(np.array_equal(again.tensors[name], found.tensors[name]) for name in found.tensors)
    assert np.array_equal(again.shape.frequencies, found.shape.frequencies)
    assert again.shape.taps == found.shape.taps


def test_a_head_with_an_embedding_of_its_own(tmp_path: Path) -> None:
    own = np.ones((tiny.VOCAB, tiny.WIDTH), np.float16)
    found = layout.read(write_head(tmp_path / "head", random_tensors() | {"embed_tokens.weight": own}))
    assert found.embedding is not None
    assert found.embedding.shape == own.shape


@pytest.mark.parametrize(
    ("config", "layers", "taps"),
    [
        ({}, 0, TAPS),
        ({"eagle_aux_hidden_state_layer_ids": None}, 30, (2, 15, 27)),
        (
            {
                "eagle_aux_hidden_state_layer_ids": None,
                "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 14, 26]},
            },
            30,
            (2, 15, 27),
        ),
    ],
)
def test_the_layers_of_the_target(
    tmp_path: Path, config: dict[str, Any], layers: int, taps: tuple[int, ...]
) -> None:
    folder = write_head(tmp_path / "head", random_tensors(), **config)
    assert layout.read_shape(folder, layers).taps == taps


def test_few_layers_are_all_different() -> None:
    for layers in range(1, 9):
        taps = layout.default_taps(layers)
        assert sorted(set(taps)) == list(taps)
        assert 1 <= taps[0] <= taps[-1] <= layers


@pytest.mark.parametrize(
    ("config", "error", "key"),
    [
        ({"hidden_act": "gelu"}, UnsupportedModel, "hidden_act"),
        ({"num_hidden_layers": 2}, UnsupportedModel, "several layers"),
        ({"norm_before_fc": True}, UnsupportedModel, "norm_before_fc"),
        ({"eagle_aux_hidden_state_layer_ids": [3, 2]}, UnsupportedModel, "ascending"),
        ({"eagle_aux_hidden_state_layer_ids": "all"}, BrokenModel, "list of layers"),
        ({"eagle_aux_hidden_state_layer_ids": None}, UnsupportedModel, "eagle_aux_hidden_state_layer_ids"),
        ({"hidden_size": 128}, BrokenModel, "expected"),
        ({"draft_vocab_size": 2 * tiny.VOCAB}, BrokenModel, "draft_vocab_size"),
        ({"vocab_size": 20, "draft_vocab_size": 20}, BrokenModel, "lm_head"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, UnsupportedModel, "dynamic"),
    ],
)
def test_a_config_that_is_not_computed_is_refused(
    tmp_path: Path, config: dict[str, Any], error: type[LocalspecError], key: str
) -> None:
    with pytest.raises(error, match=key):
        layout.read(write_head(tmp_path / "head", random_tensors(), **config))


def test_tensors_that_do_not_fit_are_named(tmp_path: Path) -> None:
    tensors = random_tensors()
    missing = {name: values for name, values in tensors.items() if name != "fc.weight"}
    with pytest.raises(BrokenModel, match=r"no tensor `fc.weight`"):
        layout.read(write_head(tmp_path / "missing", missing))
    more = tensors | {"layers.1.mlp.up_proj.weight": tensors["norm.weight"]}
    with pytest.raises(UnsupportedModel, match=r"layers.1"):
        layout.read(write_head(tmp_path / "more", more))
    with pytest.raises(BrokenModel, match=r"d2t"):
        layout.read(write_head(tmp_path / "twice", tensors | {"d2t": -np.arange(KEPT)}))
    bad = tensors["norm.weight"].copy()
    bad[3] = np.nan
    with pytest.raises(BrokenModel, match=r"`norm.weight`.*not finite"):
        layout.read(write_head(tmp_path / "nan", tensors | {"norm.weight": bad}))


def test_a_cut_file_is_broken(tmp_path: Path) -> None:
    folder = write_head(tmp_path / "head", random_tensors())
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(BrokenModel, match="truncated"):
        layout.read(folder)


def test_an_ordinary_model_is_no_head(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}), "utf-8")
    assert not layout.is_head(tmp_path)
    assert not layout.is_head(tmp_path / "nothing")
