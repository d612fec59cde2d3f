"""Measure drafts of a block-diffusion model (SimSD) against its own sampler, interleaved, as JSON lines.

    python tests/perf/cuda/simsd.py TARGET_FOLDER DRAFT_FOLDER --texts held-out.jsonl --count 24 --tokens 96

`diffusion_smollm2.py` makes the folders and the texts: a line has a prompt's tokens and an answer's. Each way
answers every prompt in turn, after one that is not counted, in which a card records its passes. The last line
has the means and ratios.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "tests" / "perf" / "cuda")]

from passes import Numbers  # noqa: E402
from timing import wall  # noqa: E402

from localspec import plugins  # noqa: E402
from localspec.core.blocks import visibility  # noqa: E402
from localspec.core.blocks.decode import Drafting, decode_blocks  # noqa: E402
from localspec.core.blocks.pace import FixedPace, MeasuredPace  # noqa: E402
from localspec.core.blocks.types import Block  # noqa: E402
from localspec.core.contracts import DraftModel  # noqa: E402
from localspec.core.cursor import Cursor  # noqa: E402
from localspec.core.sampler import Sampler, Sampling  # noqa: E402
from localspec.core.stop import OutputProcessor  # noqa: E402
from localspec.engines.diffusion import Diffusion  # noqa: E402

OWN, FAIR = "left_to_right", "low_confidence:k=1"
BEHIND = 128  # tokens before the passes that are timed by themselves


@dataclass
class Way:
    """A way to answer, and what was counted of it."""

    name: str
    sampler: Any
    target: Cursor
    drafting: Drafting | None = None
    tokens: int = 0
    seconds: float = 0.0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    depths: dict[int, int] = field(default_factory=dict)

    def answer(self, prompt: Sequence[int], limit: int, stops: Sequence[int], *, counted: bool) -> list[int]:
        """Return the greedy answer to a prompt, which is read anew."""
        for cursor in (self.target, self.drafting and getattr(self.drafting.drafter, "_cursor", None)):
            if cursor:
                cursor.read([], 0)
        processor = OutputProcessor(Numbers(), stop_tokens=stops, max_new_tokens=limit)
        sampler = Sampler(Sampling(), answer_from=len(prompt))
        started = perf_counter()
        steps = list(decode_blocks(prompt, self.target, self.sampler, sampler, processor, self.drafting))
        seconds = perf_counter() - started
        found = [token for step in steps for token in step.tokens]
        if counted:
            self.seconds += seconds
            self.tokens += len(found)
            for step in steps:
                self.passes += step.passes
                self.drafted += step.drafted
                self.accepted += step.accepted
                self.depths[step.drafted] = self.depths.get(step.drafted, 0) + 1
        return found

    def row(self, base: float) -> dict[str, Any]:
        """Return tokens per second, their ratio to `base`, and what became of drafts."""
        rate = self.tokens / self.seconds
        found: dict[str, Any] = {"tokens/s": rate, "of own": rate / base, "tokens": self.tokens}
        found["passes per token"] = self.passes / self.tokens
        if self.drafting:
            found["draft passes per token"] = self.drafted / self.tokens
            found["acceptance"] = self.accepted / max(self.drafted, 1)
            found["steps by depth"] = dict(sorted(self.depths.items()))
        return found


def ways(target: Diffusion, draft: Diffusion, depths: Sequence[int]) -> list[Way]:
    """Return the target's own sampler, the fair baseline, and drafts at a measured pace and at fixed ones.

    The last of them reveal all of a draft in one pass.
    """
    session = Cursor(target.session())

    def way(name: str, sampler: str, pace: Any = None, k: int = 1) -> Way:
        made = plugins.parse("samplers", sampler).make()
        if pace is None:
            return Way(name, made, session)
        drafter = plugins.parse("drafters", f"diffusion:name=x,k={k}").make(session, DraftModel(draft))
        return Way(name, made, session, Drafting(drafter, pace))

    found = [way(OWN, OWN), way(FAIR, FAIR), way("simsd", OWN, MeasuredPace(stepwise=True))]
    found += [way(f"simsd {depth}", OWN, FixedPace(depth)) for depth in depths]
    whole = [
        ("simsd k=4", MeasuredPace(stepwise=False)),
        *((f"simsd {n} k={n}", FixedPace(n)) for n in depths),
    ]
    return found + [way(name, OWN, pace, 4) for name, pace in whole]


def near(target: Diffusion, prompt: Sequence[int], left: list[int], right: list[int]) -> dict[str, Any]:
    """Return where two answers part, and by how much the logits of the two tokens differ there."""
    pairs = enumerate(zip(left, right, strict=False))
    at = next((at for at, (one, other) in pairs if one != other), min(len(left), len(right)))
    if at >= min(len(left), len(right)):
        return {"at": at, "gap": None}
    row = target.session().forward([*prompt, *left[:at]], 1)[0]
    row = np.array(row)
    row[target.shape.mask] = -np.inf
    spread = float(row[np.isfinite(row)].std())
    return {"at": at, "gap": float(abs(row[left[at]] - row[right[at]])) / spread, "best": int(row.argmax())}


def pass_times(engine: Diffusion, copies: Sequence[int]) -> dict[str, float]:
    """Return the milliseconds of passes over one block and over copies of it, behind an unread block."""
    session, block = engine.session(), engine.shape.block
    before = min(BEHIND, engine.context - 2 * block) // block * block
    session.forward([(7 * at + 3) % engine.shape.mask for at in range(before)], 0)
    found = {}
    for count in copies:
        tokens = [engine.shape.mask] * block * count
        places = [*range(before, before + block)] * count
        read = Block(tokens, places, visibility.apart(block, count), block * (count - 1))

        def run(read: Block = read) -> None:
            seen = session.denoise(read)
            if seen.likeliest is None:
                np.asarray(seen.logits)

        def behind_unread(run: Any = run) -> None:
            session.rewind(before - block)
            session.forward([5] * block, 0)
            run()

        found[f"{count} blocks" if count > 1 else "block"] = 1e3 * wall(run, engine.place, 30)
        found[f"{count} and an unread one"] = 1e3 * wall(behind_unread, engine.place, 30)
    return found


def stops_of(folder: Path) -> list[int]:
    """Return the tokens that end an answer by a model's configs."""
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        found = json.loads(file.read_text("utf-8")).get("eos_token_id") if file.is_file() else None
        if found is not None:
            return list(found) if isinstance(found, list) else [int(found)]
    return []


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--texts", type=Path, required=True, help="JSON lines [prompt, answer] of tokens")
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--depths", default="2,3,4")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--threads", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    asked = parsed()
    options = {"device": asked.device, "precision": asked.precision, "threads": asked.threads}
    target, draft = Diffusion(asked.target, **options), Diffusion(asked.draft, **options)
    lines = asked.texts.read_text("utf-8").splitlines()
    room = target.context - asked.tokens - target.shape.block
    prompts = [prompt for prompt in (json.loads(line)[0] for line in lines) if len(prompt) <= room]
    prompts = prompts[: asked.count + 1]
    stops, depths = stops_of(asked.target), [int(depth) for depth in asked.depths.split(",")]
    tried = ways(target, draft, depths)
    exact = [way for way in tried if way.name != FAIR]
    equal = dict.fromkeys((way.name for way in exact), 0)
    for number, prompt in enumerate(prompts):
        turn = number % len(tried)
        answers = {
            way.name: way.answer(prompt, asked.tokens, stops, counted=number > 0)
            for way in tried[turn:] + tried[:turn]
        }
        for way in exact if number else []:
            same = answers[way.name] == answers[OWN]
            equal[way.name] += same
            if not same:
                parted = near(target, prompt, answers[OWN], answers[way.name])
                print(json.dumps({"prompt": number, "differs": way.name, **parted}), flush=True)
    base = tried[0].tokens / tried[0].seconds
    name = torch.cuda.get_device_name(target.place) if target.place.type == "cuda" else "cpu"
    copies = [1, *sorted({min(depth + 1, target.shape.block) for depth in depths})]
    found: dict[str, Any] = {
        "device": name,
        "precision": str(target.dtype),
        "layers": [target.shape.layers, draft.shape.layers],
        "block": target.shape.block,
        "prompts": len(prompts) - 1,
        "ways": {way.name: way.row(base) for way in tried},
        "equal answers": equal,
        "ms of a target pass": pass_times(target, copies),
        "ms of a draft pass": pass_times(draft, [1]),
        "reason": tried[2].drafting.pace.reason if tried[2].drafting else None,
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
