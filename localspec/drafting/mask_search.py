"""A search for the sub-blocks that a model misses least: random proposals, and some Bayesian ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import erf, pi, sqrt

import numpy as np
from numpy.typing import NDArray

from localspec.drafting.skip_mask import SkipMask

STEPS, EVERY, PATIENCE = 60, 10, 20  # masks to try, one of EVERY by the model; the end after so many in vain
POOL, BEST = 512, 8  # candidates of a Bayesian proposal, and the best masks whose neighbours are among them
SCALES = (0.03, 0.1, 0.3, 1.0)  # of the kernel, in shares of all bits
NOISE = 1e-4  # of a standardized cost

Bits = NDArray[np.bool_]
Values = NDArray[np.float64]
Cost = Callable[[SkipMask], float]


@dataclass(frozen=True, slots=True)
class Trial:
    """A mask and its cost."""

    mask: SkipMask
    cost: float


def skipped(layers: int, ratio: float) -> int:
    """Return how many of the sub-blocks of the inner layers a ratio leaves out."""
    return int(2 * (layers - 2) * ratio)


def search(
    cost: Cost,
    layers: int,
    ratio: float,
    *,
    steps: int = STEPS,
    every: int = EVERY,
    patience: int = PATIENCE,
    seed: int = 0,
    tried: Callable[[Trial], None] = lambda trial: None,
) -> list[Trial]:
    """Return the masks that were tried, the cheapest first, each with the same number of sub-blocks.

    The mask search of VIA-SD (Xian et al. 2026, arXiv 2606.12243) over masks that leave out a fixed ratio of
    the sub-blocks of all layers but the first and the last. Each `every`-th proposal has the highest expected
    improvement by a Gaussian process on the masks so far. It ends after `steps` masks, or `patience` in a row
    that are no better. `tried` is told each trial.
    """
    size, count = 2 * (layers - 2), skipped(layers, ratio)
    random = np.random.default_rng(seed)
    known: dict[bytes, int] = {}
    bits: list[Bits] = []
    trials: list[Trial] = []
    waited = 0
    while len(trials) < steps and waited < patience:
        bayesian = (len(trials) + 1) % every == 0 and len(trials) > 1
        proposal = _proposed(bits, trials, random) if bayesian else _random(size, count, random)
        if proposal.tobytes() in known:
            waited += 1
            continue
        trial = Trial(mask_of(proposal), cost(mask_of(proposal)))
        waited = 0 if not trials or trial.cost < min(one.cost for one in trials) else waited + 1
        known[proposal.tobytes()] = len(trials)
        bits.append(proposal)
        trials.append(trial)
        tried(trial)
    return sorted(trials, key=lambda one: one.cost)


def mask_of(bits: Bits) -> SkipMask:
    """Return the mask of bits: the attention and the MLP of layer 1, then those of layer 2, and so on."""
    layers = [(at // 2 + 1, at % 2) for at in np.flatnonzero(bits).tolist()]
    return SkipMask(
        frozenset(layer for layer, part in layers if part == 0),
        frozenset(layer for layer, part in layers if part == 1),
    )


def _random(size: int, count: int, random: np.random.Generator) -> Bits:
    bits = np.zeros(size, np.bool_)
    bits[random.choice(size, count, replace=False)] = True
    return bits


def _proposed(bits: Sequence[Bits], trials: Sequence[Trial], random: np.random.Generator) -> Bits:
    """Return the mask of a pool with the highest expected improvement (Jones et al. 1998)."""
    costs = np.array([trial.cost for trial in trials])
    seen, size, count = np.array(bits), bits[0].size, int(bits[0].sum())
    best = [bits[at] for at in np.argsort(costs)[:BEST]]
    pool = [_swapped(best[at % len(best)], random) for at in range(POOL // 2)]
    pool += [_random(size, count, random) for _ in range(POOL - len(pool))]
    fresh = np.unique(np.array(pool), axis=0)
    fresh = fresh[~(fresh[:, None] == seen[None]).all(axis=2).any(axis=1)]
    if not len(fresh):
        return _random(size, count, random)
    mean, deviation = _predicted(seen, costs, fresh)
    return np.asarray(fresh[int(_improvement(mean, deviation, costs.min()).argmax())], np.bool_)


def _swapped(bits: Bits, random: np.random.Generator) -> Bits:
    """Return a neighbour: one sub-block that is left out changes places with one that is not."""
    swapped = bits.copy()
    for value in (True, False):
        if (places := np.flatnonzero(bits == value)).size:
            swapped[random.choice(places)] = not value
    return swapped if swapped.sum() == bits.sum() else bits


def _predicted(seen: NDArray[np.bool_], costs: Values, fresh: NDArray[np.bool_]) -> tuple[Values, Values]:
    """Return the mean and the deviation of the costs of `fresh` masks by a Gaussian process on those seen.

    Its kernel is exp(-d / (2 scale)) of the Hamming distance d, which is an RBF on bits; the scale is the one
    of the greatest marginal likelihood (Rasmussen and Williams 2006, algorithm 2.1).
    """
    spread = costs.std() or 1.0
    values = (costs - costs.mean()) / spread
    fits = [_fit(seen, values, share * seen.shape[1]) for share in SCALES]
    _, scale, factor, weights = max(fits, key=lambda fit: fit[0])
    cross = _kernel(fresh, seen, scale)
    left = np.linalg.solve(factor, cross.T)
    variance = np.maximum(1.0 - (left**2).sum(axis=0), 1e-12)
    return cross @ weights * spread + costs.mean(), np.sqrt(variance) * spread


def _fit(seen: NDArray[np.bool_], values: Values, scale: float) -> tuple[float, float, Values, Values]:
    """Return the log-likelihood of a scale, the scale, the kernel's Cholesky factor, and the weights."""
    kernel = _kernel(seen, seen, scale) + NOISE * np.eye(len(seen))
    factor: Values = np.asarray(np.linalg.cholesky(kernel), np.float64)
    weights: Values = np.asarray(np.linalg.solve(factor.T, np.linalg.solve(factor, values)), np.float64)
    likelihood = -0.5 * float(values @ weights) - float(np.log(np.diag(factor)).sum())
    return likelihood, scale, factor, weights


def _kernel(left: NDArray[np.bool_], right: NDArray[np.bool_], scale: float) -> Values:
    distance = (left[:, None] != right[None]).sum(axis=2)
    return np.asarray(np.exp(-distance / (2 * scale)), np.float64)


def _improvement(mean: Values, deviation: Values, best: float) -> Values:
    """Return the expected improvement on the lowest cost so far."""
    gain = (best - mean) / deviation
    below = np.array([0.5 * (1 + erf(value / sqrt(2))) for value in gain])
    return np.asarray((best - mean) * below + deviation * np.exp(-(gain**2) / 2) / sqrt(2 * pi), np.float64)
