"""Answers of block models without a runtime, and reads of a block by hand."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from passes import Numbers

from localspec import plugins
from localspec.core.blocks.canvas import Canvas
from localspec.core.blocks.decode import Drafting, decode_blocks
from localspec.core.blocks.pace import FixedPace, Pace
from localspec.core.contracts import DraftModel, Engine
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler, Sampling
from localspec.core.stop import OutputProcessor
from localspec.core.types import Step

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@dataclass(frozen=True)
class Filled:
    """The steps of an answer."""

    steps: list[Step]

    @property
    def tokens(self) -> list[int]:
        return [token for found in self.steps for token in found.tokens]

    @property
    def text(self) -> str:
        return "".join(found.text for found in self.steps)

    @property
    def passes(self) -> int:
        return sum(found.passes for found in self.steps)

    @property
    def drafted(self) -> int:
        return sum(found.drafted for found in self.steps)

    @property
    def accepted(self) -> int:
        return sum(found.accepted for found in self.steps)


def filled(
    engine: Engine,
    sampler: str = "low_confidence",
    *,
    prompt: Sequence[int] = PROMPT,
    draft: Engine | None = None,
    options: str = "",
    pace: Pace | None = None,
    sampling: Sampling | None = None,
    seed: int = 0,
    room: int = 24,
    stop_tokens: Collection[int] = (),
    stop: Sequence[str] = (),
) -> Filled:
    """Return the answer to `prompt`, with a draft if there is one."""
    target = Cursor(engine.session())
    drafting = None
    if draft:
        spec = plugins.parse("drafters", f"diffusion:name=x{options}")
        drafting = Drafting(spec.make(target, DraftModel(draft, engine.vocab)), pace or FixedPace(64))
    drawn = Sampler(sampling or Sampling(), seed=seed, answer_from=len(prompt))
    processor = OutputProcessor(Numbers(), stop_tokens=stop_tokens, stop=stop, max_new_tokens=room)
    part = plugins.parse("samplers", sampler).make()
    return Filled(list(decode_blocks(prompt, target, part, drawn, processor, drafting)))


def canvas_on(engine: Engine, text: Sequence[int], block: int, **options: Any) -> Canvas:
    """Return an empty block after `text`, which ends where a block does."""
    session: Any = engine.session()
    session.forward(text, 0)
    return Canvas(session, text, [], block, Sampler(Sampling(), answer_from=len(text)), **options)
