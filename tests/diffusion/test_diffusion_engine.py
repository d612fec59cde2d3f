"""The diffusion engine against a written-out reference, and transformers' own layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_diffusion
import torch
from tiny_diffusion import MASK, reference

from localspec.core.blocks import visibility
from localspec.core.blocks.types import Block
from localspec.core.rewind_check import rewind_fault
from localspec.engines.diffusion import Diffusion
from localspec.errors import BadValue, BrokenModel, ContextFull, UnsupportedModel

TEXT = [7, 3, 21, 9, 30, 2, 14, 5, 11, 28, 4, 19, 33, 8, 1, 17]
FAMILIES = ["sdar", "block_llama", "dream", "llada"]
every_family = pytest.mark.parametrize("family", FAMILIES)


def engine(folder: Path, family: str, layers: int = 2, **options: object) -> Diffusion:
    return Diffusion(tiny_diffusion.write(folder / family, family, layers), device="cpu", **options)  # type: ignore[arg-type]


@every_family
@pytest.mark.parametrize("text", [TEXT[:4], TEXT[:8], TEXT])
def test_logits_and_attention_are_those_of_the_reference(
    tmp_path: Path, family: str, text: list[int]
) -> None:
    made = engine(tmp_path, family)
    session = made.session()
    session.forward(text, 0)
    block = [*[MASK] * 2, 25, MASK]
    positions = range(len(text), len(text) + 4)
    found = session.denoise(Block(block, positions), attention=True)
    whole, places = [*text, *block], list(range(len(text) + 4))
    causal = session.causal
    sees = visibility.blockwise(places, 4) if causal else np.ones((len(whole), len(whole)), bool)
    logits, attention = reference(tiny_diffusion.tensors(family), whole, places, sees)
    first = len(text) - session.shifted
    assert session.shifted == (family == "dream")
    assert np.abs(found.logits - logits[first : first + 4]).max() < 1e-4
    assert found.attention is not None
    assert np.abs(found.attention - attention[first : first + 4, len(text) :]).max() < 1e-5


@every_family
def test_asking_for_the_attention_changes_no_logit(tmp_path: Path, family: str) -> None:
    session = engine(tmp_path, family).session()
    session.forward(TEXT, 0)
    block = Block([MASK] * 4, range(16, 20))
    session.denoise(block)
    without, beside = session.denoise(block), session.denoise(block, attention=True)
    assert without.attention is None
    assert np.array_equal(without.logits, beside.logits)


@pytest.mark.parametrize("family", ["sdar", "block_llama"])
def test_a_text_read_in_any_pieces_and_rewound_is_the_same(tmp_path: Path, family: str) -> None:
    made = engine(tmp_path, family)
    block = Block([MASK] * 4, range(12, 16))
    fresh = made.session()
    fresh.forward(TEXT[:12], 0)
    wanted = fresh.denoise(block).logits
    for pieces in ([1] * 12, [5, 7], [4, 8], [11, 1]):
        session = made.session()
        at = 0
        for size in pieces:
            session.forward(TEXT[at : at + size], 0)
            at += size
        assert np.abs(session.denoise(block).logits - wanted).max() < 1e-4
    session.forward([1, 2, 3, 4, 5, 6, 7, 8], 0)
    session.denoise(Block([MASK] * 4, range(20, 24)))
    assert session.rewind(6) == 6
    session.forward(TEXT[6:12], 0)
    assert np.abs(session.denoise(block).logits - wanted).max() < 1e-4


@every_family
def test_it_rewinds_exactly(tmp_path: Path, family: str) -> None:
    made = engine(tmp_path, family)
    assert rewind_fault(made.session(), made.vocab) is None


@every_family
def test_copies_beside_the_text_change_nothing_in_it(tmp_path: Path, family: str) -> None:
    """A shadow sees all but its own token; the tokens see none of the shadows."""
    session = engine(tmp_path, family).session()
    session.forward(TEXT[:8], 0)
    block = [12, MASK, 26, MASK]
    alone = session.denoise(Block(block, range(8, 12))).logits
    table = visibility.shadow(4)
    both = session.denoise(Block([*block, *[MASK] * 4], [*range(8, 12)] * 2, table, 4)).logits
    assert np.abs(both[:4] - alone).max() < 1e-4
    if session.shifted:
        return
    whole = [*TEXT[:8], *block, *[MASK] * 4]
    sees = np.ones((16, 16), bool)
    sees[:8, 12:] = False
    sees[8:, 8:] = table
    if session.causal:
        sees[:8, 8:] = False
        sees[:8, :8] = visibility.blockwise(range(8), 4)
    places = [*range(12), *range(8, 12)]
    logits, _ = reference(tiny_diffusion.tensors(family), whole, places, sees)
    assert np.abs(both - logits[8:]).max() < 1e-4


def test_offsets_are_added_to_the_embeddings(tmp_path: Path) -> None:
    session = engine(tmp_path, "sdar").session()
    session.forward(TEXT[:4], 0)
    plain = session.denoise(Block([5, MASK, 6, MASK], range(4, 8))).logits
    away = session.embeddings([9, 9, 9, 9]) - session.embeddings([5, MASK, 6, MASK])
    moved = session.denoise(Block([5, MASK, 6, MASK], range(4, 8), offsets=away)).logits
    wanted = session.denoise(Block([9] * 4, range(4, 8))).logits
    assert np.abs(moved - wanted).max() < 1e-4
    assert np.abs(moved - plain).max() > 0.1


@pytest.mark.parametrize("family", ["dream", "llada"])
def test_masks_ahead_are_seen(tmp_path: Path, family: str) -> None:
    session = engine(tmp_path, family, ahead=3).session()
    session.forward(TEXT[:5], 0)
    found = session.denoise(Block([MASK] * 4, range(5, 9))).logits
    whole = [*TEXT[:5], *[MASK] * 7]
    logits, _ = reference(tiny_diffusion.tensors(family), whole, list(range(12)), np.ones((12, 12), bool))
    first = 5 - session.shifted
    assert np.abs(found - logits[first : first + 4]).max() < 1e-4


def test_the_layers_are_those_of_transformers(tmp_path: Path) -> None:
    """Qwen3 of transformers with a mask of blocks computes what SDAR does."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    made = engine(tmp_path, "sdar")
    about = {key: value for key, value in tiny_diffusion.config_of("sdar").items() if key != "model_type"}
    model = Qwen3ForCausalLM(Qwen3Config(**about, attn_implementation="eager")).eval()
    drawn = {name: torch.from_numpy(value) for name, value in tiny_diffusion.tensors("sdar").items()}
    assert not model.load_state_dict(drawn, strict=False).unexpected_keys
    whole = [*TEXT[:8], 12, MASK, MASK, 26]
    sees = torch.from_numpy(visibility.blockwise(range(12), 4))
    added = torch.zeros(12, 12).masked_fill(~sees, float("-inf"))[None, None]
    with torch.inference_mode():
        wanted = model(input_ids=torch.tensor([whole]), attention_mask=added).logits[0, 8:].numpy()
    session = made.session()
    session.forward(TEXT[:8], 0)
    assert np.abs(session.denoise(Block(whole[8:], range(8, 12))).logits - wanted).max() < 1e-4


def test_a_text_has_a_limit(tmp_path: Path) -> None:
    session = engine(tmp_path, "sdar").session()
    with pytest.raises(ContextFull):
        session.forward([1] * 65, 0)
    session.forward([1] * 64, 0)
    with pytest.raises(ContextFull):
        session.denoise(Block([MASK] * 4, range(64, 68)))


@pytest.mark.parametrize(
    ("family", "changed", "error", "message"),
    [
        ("sdar", {"model_type": "qwen3"}, UnsupportedModel, "is a `qwen3` model, and none of sdar"),
        ("sdar", {"model_type": "sdar_moe"}, UnsupportedModel, "is a `sdar_moe` model"),
        ("sdar", {"block_size": 0}, BrokenModel, "`block_size`"),
        ("sdar", {"mask_token_id": 40}, BrokenModel, "`mask_token_id`"),
        ("block_llama", {"mask_token_id": None}, BrokenModel, "has no `mask_token_id`"),
        ("sdar", {"hidden_act": "gelu"}, UnsupportedModel, "`hidden_act`"),
        ("llada", {"block_type": "sequential"}, UnsupportedModel, "`block_type`"),
        ("llada", {"alibi": True}, UnsupportedModel, "`alibi`"),
        ("sdar", {"num_hidden_layers": 3}, BrokenModel, "has no tensor"),
        ("sdar", {"num_hidden_layers": 1}, UnsupportedModel, "which its family does not have"),
        ("sdar", {"intermediate_size": 65}, BrokenModel, "has the shape"),
        ("sdar", {"tie_word_embeddings": True}, UnsupportedModel, "is not the embedding"),
    ],
)
def test_a_folder_that_is_not_understood_is_refused(
    tmp_path: Path, family: str, changed: dict[str, object], error: type[Exception], message: str
) -> None:
    folder = tiny_diffusion.write(tmp_path / "model", family, **changed)
    with pytest.raises(error, match=message):
        Diffusion(folder, device="cpu")


def test_a_block_that_it_was_not_trained_for_is_refused(tmp_path: Path) -> None:
    folder = tiny_diffusion.write(tmp_path / "model", "sdar")
    with pytest.raises(BadValue, match="was trained with blocks of 4 tokens, and not of 8"):
        Diffusion(folder, device="cpu", block=8)
    assert Diffusion(folder, device="cpu", block=4).shape.block == 4
    with pytest.raises(BadValue, match="`ahead` does nothing"):
        Diffusion(folder, device="cpu", ahead=4)
    both_ways = tiny_diffusion.write(tmp_path / "other", "llada")
    assert Diffusion(both_ways, device="cpu", block=8).shape.block == 8


def test_the_layers_are_those_of_transformers_on_real_weights() -> None:
    """SmolLM2, whose blocks of one token are its causal attention."""
    import models
    from localspec.formats.diffusion import config
    from localspec.formats.diffusion.decoder import BlockDecoder
    from localspec.formats.huggingface import loading

    model = loading.load(models.smollm2_gguf(), torch.device("cpu"), torch.float32)
    theirs = model.config
    shape = config.DiffusionShape(
        family=config.OWN,
        layers=theirs.num_hidden_layers,
        width=theirs.hidden_size,
        heads=theirs.num_attention_heads,
        key_heads=theirs.num_key_value_heads,
        head_width=theirs.head_dim,
        inner=theirs.intermediate_size,
        vocab=theirs.vocab_size,
        context=theirs.max_position_embeddings,
        epsilon=theirs.rms_norm_eps,
        base=theirs.rope_theta,
        query_norm=False,
        bias=False,
        tied=True,
        mask=0,
        block=1,
        causal=True,
        shifted=False,
    )
    decoder = BlockDecoder(shape, dict(model.named_parameters()))
    ids = torch.arange(100, 140)
    table = torch.from_numpy(visibility.blockwise(range(40), 1))
    with torch.inference_mode():
        wanted = model(input_ids=ids[None]).logits[0]
        found = decoder.logits(decoder.run(decoder.embed(ids), torch.arange(40), table).hidden)
    assert (found - wanted).abs().max() < 1e-3 * wanted.std()
