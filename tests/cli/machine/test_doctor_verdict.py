"""The findings of `localspec doctor` and its verdict on a draft, from fixed records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from localspec import doctor
from localspec.cli.machine.doctor import format_verdict
from localspec.library import Library, storage

SOUND: dict[str, Any] = {
    "model": "m",
    "device": "GPU",
    "drafter": "hybrid:name=d",
    "rewind": {"lengths": [12], "fault": None},
    "draft_parity": [{"same": True}],
    "cpu_parity": None,
    "draft_speed": {"speedup": 1.5, "tokens": 100, "drafted": 60},
    "off_reason": None,
}
WRONG = [{"same": True}, {"same": False}]


@pytest.mark.parametrize(
    ("facts", "problem", "action"),
    [
        ({"rewind": {"lengths": [12], "fault": "12 logits differ"}}, "12 logits differ", "--engine"),
        ({"draft_parity": WRONG}, "`hybrid:name=d` changes the text", "--draft off"),
        ({"cpu_parity": WRONG}, "`GPU` writes another text than the CPU", "--device CPU"),
    ],
)
def test_a_failed_check_is_told_with_what_to_do(facts: dict[str, Any], problem: str, action: str) -> None:
    assert doctor.faults(SOUND) == []
    (found,) = doctor.faults(SOUND | facts)
    assert problem in found.problem
    assert action in found.action
    (line,) = format_verdict({"findings": [found._asdict()]})
    assert line == f"Not OK: {found.problem}. {found.action}"


@pytest.mark.parametrize(
    ("speedup", "said"),
    [
        (1.5, "pays here: 1.50 times"),
        (1.0, "neither gains nor loses"),
        (0.8, "does not pay here: 0.80 times"),
    ],
)
def test_the_verdict_says_whether_a_draft_pays(speedup: float, said: str) -> None:
    record = SOUND | {"draft_speed": {"speedup": speedup, "tokens": 100, "drafted": 60}}
    (line,) = format_verdict({"findings": [], "model": record})
    assert line.startswith("OK. Drafting with `hybrid:name=d`")
    assert said in line
    assert ("localspec tune m" in line) == (speedup < doctor.GAIN)


def test_the_verdict_says_why_nothing_is_drafted() -> None:
    record = SOUND | {"draft_speed": None, "off_reason": "it was switched off"}
    assert format_verdict({"findings": [], "model": record}) == [
        "OK. Nothing is drafted: it was switched off"
    ]
    assert format_verdict({"findings": []}) == ["OK"]


def test_a_full_disk_and_a_damaged_model_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(tmp_path)
    monkeypatch.setattr(storage, "free_bytes", lambda folder: doctor.LITTLE_DISK)
    assert doctor.check_machine(library) == []
    (library.models / "broken").mkdir(parents=True)
    monkeypatch.setattr(storage, "free_bytes", lambda folder: 1_000_000_000)
    assert doctor.check_machine(library) == [
        (f"`{library.models / 'broken'}` is damaged", "localspec verify"),
        ("Only 1.0 GB of disk are free", "localspec clean"),
    ]
