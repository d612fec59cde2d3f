"""The losses against their formulas, written out in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from localspec.training.losses import end_to_end, overlap, top_cross_entropy

pytestmark = pytest.mark.engines

DICE = np.random.default_rng(5)
TARGET, DRAFT = DICE.normal(0, 2, (2, 7, 11)), DICE.normal(0, 2, (2, 7, 11))


def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def test_overlap_is_what_rejection_sampling_accepts() -> None:
    expected = 1 - np.abs(softmax(TARGET) - softmax(DRAFT)).sum(-1) / 2  # 1 - TV(p, q)
    assert np.allclose(overlap(torch.tensor(TARGET), torch.tensor(DRAFT)), expected, atol=1e-6)
    assert np.allclose(overlap(torch.tensor(TARGET), torch.tensor(TARGET)), 1, atol=1e-6)


def test_the_gradient_of_overlap_is_bebops() -> None:
    logits = torch.tensor(DRAFT[0, 0], requires_grad=True)
    (1 - overlap(torch.tensor(TARGET[0, 0]), logits)).backward()
    p, q = softmax(TARGET[0, 0]), softmax(DRAFT[0, 0])
    below = q <= p
    assert np.allclose(logits.grad, -q * (below - q[below].sum()), atol=1e-6)


def test_end_to_end_is_one_minus_the_share_of_accepted_guesses() -> None:
    acceptance = DICE.uniform(0, 1, (2, 7))
    counted = np.array([[0, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1]], bool)
    runs = [acceptance[0, 1:4], acceptance[0, 2:5], *(acceptance[1, at : at + 3] for at in range(5))]
    expected = 1 - np.mean([np.cumprod(run).mean() for run in runs])
    found = end_to_end(torch.tensor(acceptance), torch.tensor(counted), 3)
    assert float(found) == pytest.approx(expected, abs=1e-6)


def test_short_texts_lower_the_draft_length() -> None:
    acceptance, counted = torch.tensor([[0.5, 0.5, 0.9]]), torch.tensor([[True, True, False]])
    assert float(end_to_end(acceptance, counted, 4)) == pytest.approx(1 - (0.5 + 0.25) / 2)


def test_end_to_end_has_a_gradient_where_a_guess_is_hopeless() -> None:
    acceptance = torch.tensor([[0.0, 0.5, 0.5]], requires_grad=True)
    end_to_end(acceptance, torch.ones(1, 3, dtype=torch.bool), 3).backward()
    assert torch.isfinite(acceptance.grad).all()


def test_top_cross_entropy() -> None:
    row, own = TARGET[0, 0], DRAFT[0, 0]
    top = np.argsort(-row)[:4]
    expected = -(softmax(row[top]) * np.log(softmax(own))[top]).sum()
    assert float(top_cross_entropy(torch.tensor(row), torch.tensor(own), 4)) == pytest.approx(
        expected, abs=1e-6
    )
