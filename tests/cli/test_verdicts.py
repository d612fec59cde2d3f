"""How `quantize`, `prune-draft`, `export`, `tune` and `show` end, from fixed results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from localspec.cli.drafts.format_card import format_card
from localspec.cli.drafts.quantize import format_quantized
from localspec.cli.machine.tune import format_tuning
from localspec.cli.models.export import format_export
from localspec.cli.models.show import format_built

CARD: dict[str, Any] = {
    "precision": "INT4",
    "layers": [0, 1, 3],
    "of_layers": 4,
    "agreement": 0.7,
    "agreement_by_class": {"code": 0.8, "prose": 0.6},
    "cost_ratio": 0.25,
    "predicted": {"draft_length": 3, "tokens_per_step": 2.4, "speedup": 1.3},
    "measured": {"draft_length": 3, "speedup": 1.21, "texts": 8, "different_texts": 0},
    "perplexity_ratio": 1.12,
    "versions": {"localspec": "1.0"},
    "parent": "small",
    "target": "large",
    "date": "2026-01-31",
}
SLOW = CARD | {"measured": CARD["measured"] | {"speedup": 0.8}}


def test_a_quantized_model_ends_with_what_was_gained() -> None:
    lines = format_quantized("m4", "m", CARD, (50_000_000, 200_000_000)).splitlines()
    assert lines == [
        "m4, m in INT4",
        "  size         50.0 MB of weights instead of 200.0 MB",
        "  quality      perplexity 1.120 times that of m on its own answers,"
        " the same most likely token in 70.0%",
        "  speed        4.00 times as fast a token",
        "hint: localspec chat m4",
    ]


@pytest.mark.parametrize(("size", "cost", "gains"), [(2, 1.2, False), (1, 1.2, True), (2, 0.8, True)])
def test_a_quantized_model_gains_size_or_speed_or_nothing(size: int, cost: float, gains: bool) -> None:
    lines = format_quantized("m4", "m", CARD | {"cost_ratio": cost}, (size, 2)).splitlines()
    assert ("It gains nothing" in lines) != gains
    assert lines[-1] == ("hint: localspec chat m4" if gains else "hint: localspec rm m4")


def test_a_draft_ends_with_its_verdict_and_the_next_command() -> None:
    good, slow = (format_card("d", "large", card).splitlines() for card in (CARD, SLOW))
    assert good[-1] == "hint: localspec chat large  # --draft auto uses it"
    assert not any("gains nothing" in line for line in good)
    assert slow[-2:] == [
        "It gains nothing: it was measured at 0.80 times the speed of plain decoding",
        "hint: localspec rm d  # or use it anyway: localspec chat large --draft d",
    ]
    other = {key: value for key, value in CARD.items() if key != "target"}
    assert format_card("d", "large", other).splitlines()[0] == "d, built from small"


def test_a_shown_card_has_no_values_of_python() -> None:
    assert format_built(CARD) == [
        "  built from small on 2026-01-31, with localspec 1.0",
        "  layers       3 of 4",
        "  weights      INT4",
        "  agreement    70% of the target's tokens",
        "  cost         0.25 of a pass of the target",
        "  quality      perplexity 1.12 times that of its parent",
        "  predicted    1.30 times as fast, draft length 3",
        "  measured     1.21 times as fast, the same texts",
        "  agreement by the kind of text",
        "    code    80%",
        "    prose   60%",
        "  As a draft for large it makes answers faster",
    ]
    healed = format_built(SLOW | {"healed": {"before": 0.5, "after": 0.625, "texts": 9}})
    assert healed[1] == "  healed: 50.0% of guesses accepted before, 62.5% after"
    assert healed[-1].startswith("  As a draft for large it gains nothing: it was measured at 0.80")


def test_an_export_ends_with_the_size_and_how_to_use_it() -> None:
    lines = format_export(
        Path("my m"), {"model.gguf": 3_000_000, "x.json": 1}, 9_000_000, npu=False
    ).splitlines()
    assert lines[-2:] == [
        "The weights take 3.0 MB instead of 9.0 MB",
        "hint: localspec chat './my m/model.gguf'",
    ]
    folder = format_export(Path("out"), {"openvino_model.bin": 5}, 9, npu=True)
    assert folder.endswith("hint: localspec chat ./out --engine npu")


@pytest.mark.parametrize(
    ("winner", "speedup", "end"),
    [
        ({"draft": "ngram"}, 1.4, "hint: localspec chat m  # uses what was found"),
        (None, 1.4, "hint: localspec chat m  # goes on with the default"),
        (None, None, "hint: localspec tune m --minutes 30  # for the candidates that were not reached"),
    ],
)
def test_a_search_ends_with_the_next_command(
    winner: dict[str, Any] | None, speedup: float | None, end: str
) -> None:
    ratio = {"value": speedup, "low": 1.2, "high": 1.6, "prompts": 4} if speedup else None
    values = {
        "winner": winner,
        "speedup": ratio if winner else None,
        "advice": [],
        "candidates": [{"options": "draft=ngram", "speedup": ratio, "rejected": None}],
    }
    lines = format_tuning("m", values).splitlines()
    assert lines[-1] == end
    assert lines[-2] == (
        "1.40 times as fast as the default (1.20 to 1.60)"
        if winner
        else "The default stays: nothing was faster beyond doubt"
    )
