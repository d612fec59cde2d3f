"""A middle tier of real engines: the target's first layers, and the target without some sub-blocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import parity
import pytest
import tiny
from passes import read

from localspec.core.contracts import ReducibleSession
from localspec.core.cursor import Cursor
from localspec.core.rewind_check import rewind_fault
from localspec.core.sampler import Sampling
from localspec.draft_length.fixed import Fixed
from localspec.drafters.cascade import CascadeDraft
from localspec.drafting.margin_cost import log_softmax, margin_cost
from localspec.drafting.mask_search import search
from localspec.drafting.skip_mask import SkipMask
from localspec.engines.torch.engine import Torch
from localspec.errors import BadValue, UnsupportedModel

pytestmark = pytest.mark.engines

Ask = Callable[..., Any]
MASK = "a1-3+m2-4"
TEXT = [int(token) for token in np.random.default_rng(0).integers(0, tiny.VOCAB, 60)]
SHAPE = {"vocab_size": tiny.VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
SHAPE |= {"num_key_value_heads": 2, "num_hidden_layers": 6, "max_position_embeddings": 256, "pad_token_id": 0}


def folder(path: Path, family: str = "llama", idle: str = "", **options: Any) -> Path:
    """Write a random model, in which the sub-blocks `idle` add nothing."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    shape = SHAPE | {"initializer_range": 0.2} | options
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **shape))
    with torch.no_grad():
        for at, layer in enumerate(getattr(model.base_model, "layers", [])):
            for kind, weight in (("a", "self_attn.o_proj"), ("m", "mlp.down_proj")):
                if f"{kind}{at}" in idle.split("+"):
                    layer.get_submodule(weight).weight.zero_()
    model.save_pretrained(path)
    return path


def torch_engine(path: Path, **options: Any) -> Torch:
    return Torch(path, device="cpu", threads=1, **({"skip": True} | options))


def reducible(engine: Torch) -> ReducibleSession:
    session = engine.session()
    assert isinstance(session, ReducibleSession)
    return session


def test_a_sub_block_that_is_skipped_adds_nothing(tmp_path: Path) -> None:
    whole = torch_engine(folder(tmp_path / "whole"))
    idle = torch_engine(folder(tmp_path / "idle", idle="a1+a2+a3+m2+m3+m4"), skip=False)
    found = reducible(whole).reduced(MASK).forward(TEXT, 60).copy()
    assert np.abs(found - idle.session().forward(TEXT, 60)).max() < 1e-4
    assert np.abs(found - whole.session().forward(TEXT, 60)).max() > 0.1


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "qwen2_moe", "mistral"])
def test_it_reads_in_passes_of_any_width_and_rewinds(tmp_path: Path, family: str) -> None:
    engine = torch_engine(folder(tmp_path, family))
    session = reducible(engine)
    whole = read(session.reduced(MASK), TEXT, 60)
    assert np.abs(read(session.reduced(MASK), TEXT, 13, 1, 7, 1, 4) - whole).max() < 1e-3
    assert rewind_fault(session.reduced(MASK), engine.vocab, 12) is None
    assert session.forward(TEXT, 1).shape == (1, tiny.VOCAB)


def test_it_shares_the_weights(tmp_path: Path) -> None:
    engine = torch_engine(folder(tmp_path))
    places = {values.data_ptr() for values in engine.model.parameters()}
    view: Any = reducible(engine).reduced(MASK)
    assert {values.data_ptr() for values in view._view.parameters()} < places
    assert len(view._view.base_model.layers) == 4  # two are left out whole
    assert len(engine.model.base_model.layers) == 6


@pytest.mark.parametrize("family", ["gpt2", "mamba"])
def test_a_family_that_is_built_otherwise_is_refused(tmp_path: Path, family: str) -> None:
    options = {"hidden_size": 64, "num_hidden_layers": 6}
    path = folder(tmp_path, family, **options)
    with pytest.raises(
        UnsupportedModel, match="does not run without sub-blocks|has no smaller passes"
    ) as caught:
        reducible(torch_engine(path)).reduced(MASK)
    assert caught.value.hint


def test_a_mask_of_another_model_and_two_extras_are_refused(tmp_path: Path) -> None:
    path = folder(tmp_path)
    with pytest.raises(BadValue, match="Layer 5 cannot be skipped: the model has 6 layers"):
        reducible(torch_engine(path)).reduced("a4-5")
    with pytest.raises(BadValue, match="`hidden` and `skip` exclude each other"):
        torch_engine(path, hidden=True)
    assert torch_engine(path).shared_passes(2) is None


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=1.0, top_k=20)], ids=["greedy", "sampled"]
)
@pytest.mark.parametrize("middle", [MASK, "4"])
def test_a_random_model_writes_its_own_text(
    tmp_path: Path, ask: Ask, sampling: Sampling, middle: str
) -> None:
    path = folder(tmp_path, idle="a2+m3+a4")
    engine = torch_engine(path, skip=True) if middle == MASK else torch_engine(path, skip=False, exit=4)
    asked = {"prompt": TEXT[:20] * 3, "room": 60, "sampling": sampling, "seed": 5}
    plain = ask(Cursor(torch_engine(path, skip=False).session()), **asked)
    target = Cursor(engine.session())
    found = ask(target, CascadeDraft(target, middle=middle, escalate=0.05), Fixed(tokens=6), **asked)
    assert sum(guess.source == "middle" for last in found.steps for guess in last.draft) > 10
    compared = {"engine": torch_engine(path, skip=False), "prompt": asked["prompt"], "tolerance": 0.02}
    parity.check(plain.tokens, found.tokens, sampling=sampling, seed=5, **compared)


def test_the_search_improves_on_random_masks_of_a_random_model(tmp_path: Path) -> None:
    idle = "a1+a2+m2+a3+m4"
    engine = torch_engine(folder(tmp_path, idle=idle))
    session = reducible(engine)
    own = log_softmax(engine.session().forward(TEXT, 60).copy())

    def cost(mask: SkipMask) -> float:
        return float(margin_cost(own, log_softmax(session.reduced(str(mask)).forward(TEXT, 60))).mean())

    trials = search(cost, 6, 5 / 8, steps=48, every=3, patience=48)
    assert str(trials[0].mask) == "a1-3+m2+m4"
    assert trials[0].cost == pytest.approx(0, abs=1e-3)
    assert trials[len(trials) // 2].cost > 0.1


def test_openvino_writes_smollm2_s_own_text_behind_its_first_layers(
    engine: Any, ask: Ask, prompt: list[int]
) -> None:
    layer, whole = 25, engine()
    target = Cursor(engine(exit=layer).session())
    target.read(prompt[:-1], rows=0)
    drafter = CascadeDraft(target, middle=str(layer))
    found = ask(target, drafter, Fixed(tokens=6), prompt=prompt, room=48)
    plain = ask(Cursor(whole.session()), prompt=prompt, room=48)
    assert sum(guess.source == "middle" for last in found.steps for guess in last.draft[: last.accepted]) > 5
    parity.check(plain.tokens, found.tokens, engine=whole, prompt=prompt, tolerance=parity.ROUNDED)
