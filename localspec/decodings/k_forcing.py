"""K-Forcing's own decoding: several tokens from one pass, unchecked."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np

from localspec.core.contracts import Decoding
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler, Sampling
from localspec.core.types import Tokens
from localspec.drafting.extras import hinted
from localspec.plugins import Option


class KForcing(Decoding):
    """Takes k tokens from each pass: the target's own, and those that its hints tell (2606.10820).

    No pass checks the others, so the text follows another distribution than the target's. `seed` and
    `temperature` are those of the noise, whose quantiles draw tokens by inverse CDF.
    """

    title: ClassVar[str] = "K-Forcing"

    def __init__(
        self,
        target: Cursor,
        *,
        name: Annotated[str, Option("the hints: a name in the library, or a folder")],
        k: Annotated[int, Option("tokens a pass, 0 for as many as were trained", least=0, most=16)] = 0,
        temperature: Annotated[float, Option("of the noise, 0 for none", least=0, most=1)] = 0.0,
        seed: Annotated[int, Option("of the noise", least=0)] = 0,
    ) -> None:
        self._session, self._k = hinted(target, "k_forcing", name, k)
        self._target = target
        self._sampler = Sampler(Sampling(temperature), seed=seed, quantiles=True)
        self._told: tuple[list[int], list[int]] = ([], [])  # a text, and the tokens after it

    @classmethod
    def needs(cls, **options: Any) -> dict[str, Any]:
        """Return the engine's `hints`."""
        return {"hints": options["name"]}

    def choose(self, tokens: Tokens) -> int:
        """Return the token after `tokens`; one of k costs a pass. Raises what the engine raises."""
        text, rest = self._told
        if not rest or text != list(tokens):
            text, rest = list(tokens), self._pass(list(tokens))
        self._told = [*text, rest[0]], rest[1:]
        return rest[0]

    def _pass(self, text: list[int]) -> list[int]:
        """Return the next tokens of one pass, up to k."""
        if self._k > 1:
            self._session.hint(self._sampler.quantile, self._sampler.sampling.temperature)
        row = self._target.read(text)
        rows = np.concatenate([row, *self._session.hinted()[:, : self._k - 1]])
        found: list[int] = []
        for each in rows:
            found.append(self._sampler.choose(each, [*text, *found]))
        return found
