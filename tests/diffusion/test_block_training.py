"""The training of block models: both views of a text in one pass, and a loss that falls."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tiny_diffusion
import torch
from tiny_diffusion import MASK

from localspec.core.blocks.types import Block
from localspec.drafting.build_step import TargetText
from localspec.engines.diffusion import Diffusion
from localspec.formats.diffusion import config
from localspec.formats.diffusion.decoder import BlockDecoder
from localspec.training.blocks import BlockLearner, block_loss, noised, padded, two_views

TEXT = [7, 3, 21, 9, 30, 2, 14, 5, 11, 28, 4, 19]


def test_the_table_of_both_views() -> None:
    found = two_views(4, 2).astype(int).tolist()
    assert found == [
        [1, 1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0, 0],
        [0, 0, 1, 1, 1, 1, 0, 0],
        [0, 0, 1, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 1, 1],
        [0, 0, 0, 0, 1, 1, 1, 1],
    ]


def test_one_pass_computes_what_the_engine_computes_block_by_block(tmp_path: Path) -> None:
    folder = tiny_diffusion.write(tmp_path / "model", "sdar")
    engine = Diffusion(folder, device="cpu")
    masked = [*TEXT]
    for place in (1, 2, 5, 8, 9, 10, 11):
        masked[place] = MASK
    table = torch.from_numpy(two_views(12, 4))
    with torch.inference_mode():
        inputs = engine.decoder.embed(torch.tensor([*masked, *TEXT]))
        hidden = engine.decoder.run(inputs, torch.arange(12).repeat(2), table).hidden[:12]
        found = engine.decoder.logits(hidden).numpy()
    for first in (0, 4, 8):
        session = engine.session()
        session.forward(TEXT[:first], 0)
        wanted = session.denoise(Block(masked[first : first + 4], range(first, first + 4))).logits
        assert np.abs(found[first : first + 4] - wanted).max() < 1e-4


def test_texts_are_filled_up_to_whole_blocks() -> None:
    tokens, counted = padded(
        [TargetText([1, 2, 3], [4, 5]), TargetText([6], [7, 8, 9, 10, 11, 12, 13])], 0, 4
    )
    assert tokens.tolist() == [[1, 2, 3, 4, 5, 0, 0, 0], [6, 7, 8, 9, 10, 11, 12, 13]]
    assert counted.astype(int).tolist() == [[0, 0, 0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1, 1]]
    tokens, counted = padded([TargetText([1], [2]), TargetText([1, 2, 3, 4], [5])], 0, 4)
    assert counted.astype(int).tolist() == [[0, 1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1]]


def test_every_block_has_a_share_of_masks_of_its_own() -> None:
    tokens = torch.ones(4000, 8, dtype=torch.long)
    changed, masked = noised(tokens, 9, 4, torch.Generator().manual_seed(0))
    assert torch.equal(changed == 9, masked)
    first, second = (masked[:, at : at + 4].float().mean(1) for at in (0, 4))
    assert abs(first.mean() - 0.525) < 0.02
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.06
    whole = masked.view(8000, 4)
    assert (whole[:, 0] == whole[:, 1]).float().mean() > 0.6  # alike within a block


def test_the_loss_falls_and_prompts_are_not_masked(tmp_path: Path) -> None:
    shape = config.read(tiny_diffusion.write(tmp_path / "model", "sdar"))
    drawn = {
        name: torch.from_numpy(values).requires_grad_()
        for name, values in tiny_diffusion.tensors("sdar").items()
    }
    texts = [TargetText([1, 2, first], [first, first + 1, 3, 4, 5]) for first in range(8)]
    learner = BlockLearner(BlockDecoder(shape, drawn), texts, 0)
    before = learner.score()
    assert before == learner.score()
    optimizer = torch.optim.Adam(learner.parameters.values(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        learner.loss(texts, 0.0).backward()
        optimizer.step()
    assert learner.score() > before / 2
    assert learner.found(learner.score(), before).endswith("before")
    none = torch.zeros(1, 8, dtype=torch.bool)
    none[0, 7] = True
    tokens, generator = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8]]), torch.Generator().manual_seed(3)
    table = torch.from_numpy(two_views(8, 4))
    losses = [block_loss(learner._decoder, tokens, none, table, generator) for _ in range(20)]
    found = {round(loss.item(), 3) for loss in losses if loss == loss}
    assert len(found) == 1  # the same one mask each time, whatever is drawn for the others


def test_masks_at_the_end_of_blocks_are_those_that_a_sampler_from_left_to_right_meets() -> None:
    tokens = torch.ones(4000, 8, dtype=torch.long)
    _, masked = noised(tokens, 9, 4, torch.Generator().manual_seed(0), ends=1.0)
    counts = masked.view(8000, 4).sum(1)
    assert torch.equal(masked.view(8000, 4), torch.arange(4) >= 4 - counts[:, None])
    assert abs((counts == 1).float().mean() - 0.21) < 0.02  # shares from 0.05 to 1, rounded up
    assert abs((counts == 4).float().mean() - 0.26) < 0.02
    _, some = noised(tokens, 9, 4, torch.Generator().manual_seed(0), ends=0.5)
    blocks = some.view(8000, 4)
    ordered = (blocks == (torch.arange(4) >= 4 - blocks.sum(1)[:, None])).all(1).float().mean()
    assert 0.6 < ordered < 0.85


def test_a_draft_learns_its_targets_distributions(tmp_path: Path) -> None:
    """The loss is least where the draft says what both the texts and the teacher say."""
    shape = config.read(tiny_diffusion.write(tmp_path / "model", "sdar"))

    def decoder(seed: int) -> BlockDecoder:
        values = tiny_diffusion.tensors("sdar", seed=seed)
        return BlockDecoder(shape, {name: torch.from_numpy(each) for name, each in values.items()})

    texts = [TargetText([1, 2, first], [first, first + 1, 3, 4, 5]) for first in range(8)]
    draft, teacher = decoder(0), decoder(1)
    alone = -BlockLearner(draft, texts, 0, ends=1.0).score()
    taught = -BlockLearner(draft, texts, 0, ends=1.0, teacher=teacher).score()
    from_itself = -BlockLearner(draft, texts, 0, ends=1.0, teacher=draft).score()
    entropy = 2 * from_itself - alone
    assert 0 < entropy < 2 * taught - alone  # cross-entropy to another is more than the entropy
