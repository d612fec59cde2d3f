"""Texts in pairs of tokens, some of which are cut short by a pad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.core.types import PAD
from localspec.drafting.build_step import TargetText
from localspec.training.loop import length

ROUND = 32  # pairs; texts are padded to multiples of it, so that a GPU sees few shapes
QUESTION = 0.2  # weight of what the user wrote, beside that of an answer


class PairedTexts(NamedTuple):
    """Texts in pairs, padded on the right: all are torch tensors.

    `tokens` [texts, tokens] are the texts without pads. `first` and `second` [texts, pairs] are the tokens of
    pairs, `starts` and `ends` the places of their first and last token in the text. `weights` [2, texts,
    pairs] are those of what follows the last token of a pair, and of what follows its first one.
    """

    tokens: Any
    first: Any
    second: Any
    starts: Any
    ends: Any
    weights: Any


def paired(
    texts: Sequence[TargetText],
    shares: NDArray[np.float64],
    numbers: np.random.Generator,
    device: Any,
    question: float = QUESTION,
) -> PairedTexts:
    """Return texts in pairs on a torch device; a share [texts] of the pairs of each is cut short by a pad.

    A text of an odd length ends in a pad. Tokens before the answers weigh `question`.
    """
    import torch

    count = max(map(length, texts))
    width = -(-count // (2 * ROUND)) * 2 * ROUND
    tokens = np.zeros((len(texts), width), np.int64)
    for row, (prompt, answer) in enumerate(texts):
        tokens[row, : len(prompt) + len(answer)] = [*prompt, *answer]
    sizes = np.where(numbers.random((len(texts), count)) < shares[:, None], 1, 2)
    starts = sizes.cumsum(1) - sizes
    lengths = np.array([length(text) for text in texts])[:, None]
    known = starts < lengths
    pairs = -(-int(known.sum(1).max()) // ROUND) * ROUND
    starts, sizes, known = (_fitted(part, pairs) for part in (starts, sizes, known))
    ends = np.minimum(starts + sizes, lengths) - 1
    starts, ends = np.where(known, starts, 0), np.where(known, ends, 0)
    first, last = (np.take_along_axis(tokens, part, 1) * known for part in (starts, ends))
    second = np.where((ends > starts) | ~known, last, PAD)
    answers = np.array([len(text.prompt) for text in texts])[:, None]
    weights = [
        np.where(known & (at < lengths - 1), np.where(at >= answers - 1, 1.0, question), 0.0)
        for at in (ends, starts)
    ]
    found = [tokens, first, second, starts, ends, np.array(weights, np.float32)]
    return PairedTexts(*(torch.from_numpy(part).to(device) for part in found))


def _fitted(values: NDArray[Any], width: int) -> NDArray[Any]:
    """Return values [texts, n] as [texts, width], cut or filled up with zeros."""
    values = values[:, :width]
    return np.pad(values, ((0, 0), (0, width - values.shape[1])))
