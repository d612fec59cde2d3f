"""The page of a report: it fits a telephone, names what it draws, and marks what it cuts."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from localspec.bench.page import page
from localspec.bench.wording import counted, parities

MEASURED = sorted((Path(__file__).parents[2] / "docs" / "measured").glob("*.json"))


def measured(file: Path = MEASURED[0]) -> dict[str, Any]:
    """Return a report of the docs, which lists no single answers."""
    found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return {"runs": [], "skipped": [], **found}


def with_speedup(value: float, low: float, high: float) -> dict[str, Any]:
    """Return a report whose only speed-up is this one."""
    report = measured()
    row = next(row for row in report["summary"] if row["backend"] != "plain")
    row |= {"speedup": {"value": value, "low": low, "high": high, "prompts": 2}, "classes": []}
    return report | {"summary": [row]}


class Page(HTMLParser):
    """Records the cells of each row, the texts of plots, and the tags with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[tuple[dict[str, str | None], str]]] = []
        self.labels: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._tag = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self._tag = tag
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append((dict(attributes), ""))
        if tag == "text":
            self.labels.append("")

    def handle_data(self, text: str) -> None:
        if self._tag in ("td", "th") and self.rows[-1]:
            attributes, before = self.rows[-1][-1]
            self.rows[-1][-1] = attributes, before + text
        if self._tag in ("text", "tspan") and self.labels:
            self.labels[-1] += text

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""

    def named(self, tag: str, name: str = "") -> list[dict[str, str | None]]:
        """Return the attributes of the tags of a name and a class."""
        return [found for known, found in self.tags if known == tag and found.get("class", "") == name]


@pytest.mark.parametrize("file", MEASURED, ids=lambda file: file.stem)
def test_each_cell_of_a_narrow_page_has_a_label_or_the_whole_width(file: Path) -> None:
    text = page(measured(file))
    assert "width=device-width" in text
    assert re.search(r"@media \(max-width: 760px\) \{.*thead \{ display: none; \}", text, re.S)
    head, *rows = Page(text).rows
    columns = [name for _, name in head]
    assert len(rows) > 3
    for row in rows:
        if [name for _, name in row] == ["backend", "source", "drafted", "accepted", "ms per token"]:
            columns = [name for _, name in row]
            continue
        first, *others = row
        assert first[1].strip()
        if "colspan" in others[0][0]:
            assert others[0][0]["class"] == "wide"
            continue
        assert [attributes["data-label"] for attributes, _ in others] == columns[1:]
        for _, shown in others:  # an empty cell is hidden by `td:empty`, which takes no blanks
            assert shown == shown.strip()


def test_nothing_but_a_table_scrolls_sideways() -> None:
    text = page(measured())
    assert text.count('<div class="scroll"><table>') == text.count("<table>") > 0
    assert "overflow-wrap: anywhere" in re.findall(r"^body \{.*", text, re.M)[0]
    assert "white-space: nowrap" not in re.findall(r"^th, td \{.*", text, re.M)[0]  # reasons are long


def test_the_line_of_plain_decoding_has_a_name() -> None:
    found = Page(page(with_speedup(2.0, 1.5, 2.5)))
    assert "1x: plain decoding" in found.labels
    assert any("2.00 (1.50 to 2.50)" in label for label in found.labels)


def test_only_a_cut_interval_has_an_arrow_and_a_note() -> None:
    whole, cut = (page(with_speedup(2.0, 1.0, high)) for high in (2.4, 75.18))
    assert not Page(whole).named("polygon", "cut")
    assert "goes on beyond the plot" not in whole
    assert len(Page(cut).named("polygon", "cut")) == 1
    assert "goes on beyond the plot" in cut
    assert any("(1.00 to 75.18)" in label for label in Page(cut).labels)


def test_names_and_bars_stay_inside_the_plot() -> None:
    report = with_speedup(9.0, 0.01, 400.0)
    found = Page(page(report))
    width = 440.0
    for tag in ("rect", "line"):
        for shape in found.named(tag):
            ends = [float(shape[key] or 0) for key in ("x", "x1", "x2") if key in shape]
            assert all(0 <= end <= width for end in ends)
    assert any(label.startswith(f"{report['summary'][0]['backend']}: all") for label in found.labels)


def test_one_is_singular() -> None:
    report = measured()
    report["options"] |= {"prompts": 1, "repeat": 1, "tokens": 1}
    report["machine"]["cores"] = 1
    assert "1 core.\n1 prompt, 1 repetition, at most 1 token an answer." in page(report)
    report["options"] |= {"prompts": 2, "repeat": 2, "tokens": 2000}
    report["machine"]["cores"] = 2
    assert "2 cores.\n2 prompts, 2 repetitions, at most 2,000 tokens an answer." in page(report)
    assert [counted(number, "step") for number in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]


def test_a_comparison_is_in_words() -> None:
    def said(answers: int, ties: int, failures: int) -> str:
        parity = {"answers": answers, "ties": ties, "failures": [{}] * failures}
        found = parities({"parity": {"plain": parity, "ngram": parity}})
        assert list(found) == ["ngram"]
        return found["ngram"]

    assert said(1, 0, 0) == "1 answer compared, none differs"
    assert said(12, 1, 0) == "12 answers compared, 1 differs at a near tie"
    assert said(12, 2, 1) == "12 answers compared, 1 differs, 2 differ at a near tie"
