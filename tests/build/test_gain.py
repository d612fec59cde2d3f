"""Whether a draft is worth having, from its card, and how long a build takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny

from localspec import plugins
from localspec.build import no_gain, resources
from localspec.library import Library, Silent

CARD: dict[str, Any] = {
    "agreement": 0.7,
    "cost_ratio": 0.25,
    "predicted": {"draft_length": 3, "tokens_per_step": 2.4, "speedup": 1.3},
}
NONE = {"draft_length": 0, "tokens_per_step": 1.0, "speedup": 1.0}


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({}, None),
        ({"measured": {"speedup": 1.2}}, None),
        ({"measured": {"speedup": 1.2}, "predicted": NONE}, None),
        ({"measured": {"speedup": 0.91}}, "it was measured at 0.91 times the speed of plain decoding"),
        ({"measured": {"speedup": 1.0}}, "it was measured at 1.00 times the speed of plain decoding"),
        ({"predicted": NONE}, "its passes take 25% of the time of the target's, too long for 70% agreement"),
    ],
)
def test_a_draft_gains_what_was_measured_or_else_predicted(facts: dict[str, Any], reason: str | None) -> None:
    assert no_gain(CARD | facts) == reason


def test_a_search_and_healing_take_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    file = tiny.write_gguf(tiny.make("llama", "Q8_0"), tmp_path / "tiny.gguf")
    model = Library().resolve(str(file), Silent())

    def minutes(*steps: str, prompts: int = 12) -> float:
        return resources.estimate_minutes(
            model, model, [plugins.parse("steps", step) for step in steps], prompts
        )

    once = minutes("quantize:bits=8")
    assert once > 0
    assert minutes("quantize:bits=8", prompts=24) == minutes("quantize:bits=8", prompts=99) == 2 * once
    for longer in ("quantize:bits=auto", "prune:layers=4", "quantize:method=awq"):
        assert minutes(longer) == 2 * once
    assert minutes("quantize:bits=8", "heal:minutes=3") == pytest.approx(once + 3)
    assert minutes("quantize:bits=8", "heal") == pytest.approx(once + 20)
