"""PIPO's own decoding: it reads pairs of tokens and writes up to two a pass, unchecked."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from localspec.core.contracts import Decoding
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler, Sampling
from localspec.core.types import Tokens
from localspec.drafting.extras import paired
from localspec.plugins import Option


class Pipo(Decoding):
    """Reads the text in pairs, which halves the passes over a prompt, and writes up to two tokens a pass.

    It is another model than the target (2605.27255), so the text is lossy. A second token of which its head
    is less sure than `least` is left to the next pass. `seed` and `temperature` are those of the noise.
    """

    title: ClassVar[str] = "PIPO"

    def __init__(
        self,
        target: Cursor,
        *,
        name: Annotated[str, Option("its weights: a name or a folder, MODEL-pipo when empty")] = "",
        least: Annotated[float, Option("confidence of a second token", least=0, most=1)] = 0.95,
        temperature: Annotated[float, Option("of the noise, 0 for none", least=0, most=1)] = 0.0,
        seed: Annotated[int, Option("of the noise", least=0)] = 0,
    ) -> None:
        del name  # the engine was made with it
        paired(target.session, "pipo").least = least
        self._target = target
        self._sampler = Sampler(Sampling(temperature), seed=seed)

    @classmethod
    def needs(cls, **options: Any) -> dict[str, Any]:
        """Return the engine's `pairs`."""
        return {"pairs": options.get("name", "")}

    def choose(self, tokens: Tokens) -> int:
        """Return the token after `tokens`; raises what the engine raises."""
        return self._sampler.choose(self._target.read(tokens)[0], tokens)
