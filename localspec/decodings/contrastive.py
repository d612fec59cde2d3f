"""Contrastive search: likely tokens, except those too similar to the text so far."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from localspec.core.contracts import Decoding, HiddenStates
from localspec.core.cursor import Cursor
from localspec.core.sampler import top
from localspec.core.types import Logits, Row, Tokens
from localspec.errors import BadValue
from localspec.plugins import Option


class Contrastive(Decoding):
    """Takes, of the k most likely tokens, one that differs from all before it (contrastive search).

    Su et al. 2022, "A Contrastive Framework for Neural Text Generation", equation 5. Each token costs a pass
    for every candidate. The result depends on no seed.
    """

    title: ClassVar[str] = "contrastive search"

    def __init__(
        self,
        target: Cursor,
        *,
        alpha: Annotated[float, Option("weight of the penalty, 0 for none", least=0, most=1)] = 0.6,
        k: Annotated[int, Option("candidates a token", least=1, most=100)] = 4,
    ) -> None:
        session = target.session
        if not isinstance(session, HiddenStates):
            raise BadValue(
                "`contrastive` needs an engine with `hidden` states",
                "Make the target's so, such as `openvino:hidden=on`",
            )
        self._target = target
        self._session = session
        self._alpha = alpha
        self._k = k
        self._known: tuple[list[int], Row] | None = None  # a text and the logits after it

    @classmethod
    def needs(cls, **options: Any) -> dict[str, Any]:
        """Return the engine's `hidden`: tokens are compared by their last hidden states."""
        return {"hidden": True}

    def choose(self, tokens: Tokens) -> int:
        """Return the token after `tokens`.

        Effects: the target's session holds `tokens` and the last candidate. Raises what its engine raises.
        """
        text = list(tokens)
        row = self._after(text)
        candidates = likeliest(row, self._k)
        rows, states = zip(*(self._read([*text, token]) for token in candidates), strict=True)
        before = self._session.hidden()[: len(text)]
        probs = softmax(row)[candidates]
        at = int(scores(probs, np.stack(states), before, self._alpha).argmax())
        token = int(candidates[at])
        self._known = ([*text, token], rows[at])
        return token

    def _after(self, text: list[int]) -> Row:
        """Return the logits [vocab] after `text`, which a candidate's pass may have computed already."""
        if self._known is not None and self._known[0] == text:
            return self._known[1]
        row: Row = self._target.read(text)[0].copy()
        return row

    def _read(self, text: list[int]) -> tuple[Row, Row]:
        """Return copies of the logits [vocab] and the hidden state [width] after `text`."""
        row = self._target.read(text)[0].copy()
        return row, self._session.hidden()[-1].copy()


def scores(probs: NDArray[np.float64], states: Logits, before: Logits, alpha: float) -> NDArray[np.float64]:
    """Return the scores [k] of candidates by their `probs` [k] and hidden `states` [k, width].

    (1 - alpha) p(v | x) - alpha max_j cos(h_v, h_j) over the states `before` [tokens, width]: Su et al. 2022,
    equation 5.
    """
    likeness = normed(states) @ normed(before).T
    found: NDArray[np.float64] = (1 - alpha) * probs - alpha * likeness.max(axis=1)
    return found


def normed(states: Logits) -> Logits:
    """Return vectors [n, width] of length 1."""
    found: Logits = states / np.linalg.norm(states, axis=1, keepdims=True)
    return found


def softmax(row: Row) -> NDArray[np.float64]:
    """Return the probabilities [vocab] of logits."""
    weights = np.exp((row - row.max()).astype(np.float64))
    found: NDArray[np.float64] = weights / weights.sum()
    return found


def likeliest(row: Row, count: int) -> NDArray[np.int64]:
    """Return the `count` tokens of the highest logits, most likely first."""
    found = top(row, count)
    return found[np.argsort(-row[found], kind="stable")]
