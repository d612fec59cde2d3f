"""`localspec bench` and `localspec tune` as real processes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from command import MODEL, Localspec, Ran

FEW = ("--repeat", "1", "--tokens", "8", "--draft", "ngram", "--draft-length", "fixed:tokens=2")


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "Say one two one two."}\n{"prompt": "Say hello.", "class": "talk"}\n')
    return file


def test_bench_writes_a_table_a_report_and_a_page(localspec: Localspec, suite: Path, tmp_path: Path) -> None:
    report, page = tmp_path / "out.json", tmp_path / "out.html"
    ran = localspec.run(
        "bench", MODEL, "--suite", str(suite), *FEW, "--json", str(report), "--html", str(page)
    )
    assert ran.code == 0, ran.err
    head, _, _, *table = ran.out.splitlines()
    assert head.endswith(", 2 prompts, 1 repetition")
    assert [line.split()[0] for line in table[:6]] == [
        *("plain", "mine:", "mine:"),
        *("ngram", "mine:", "mine:"),
    ]
    assert table[6:] == [
        *("", "parity of ngram: 2 answers compared, none differs"),
        *(f"wrote {report}", f"wrote {page}"),
    ]
    found = json.loads(report.read_text())
    assert found["finished"]
    assert found["parity"]["ngram"]["passed"]
    assert len(found["runs"]) == 4
    assert page.read_text().startswith("<!doctype html>")
    warm = localspec.run("bench", MODEL, "--suite", str(suite), *FEW, "--temperature", "0.8")
    assert warm.out.splitlines()[0].endswith(", 2 prompts, 1 repetition, temperature 0.8")
    assert "2 answers compared, none differs" in warm.out
    again = localspec.run("bench", MODEL, "--suite", str(suite), *FEW, "--compare", str(report))
    assert again.code == 0
    assert "since " in again.out
    assert "NOT COMPARABLE" not in again.out


def test_json_alone_goes_to_stdout(localspec: Localspec, suite: Path) -> None:
    ran = localspec.run("bench", MODEL, "--suite", str(suite), *FEW, "--json", "-")
    assert json.loads(ran.out)["schema"] == 1


def test_an_interrupt_reports_what_was_measured(
    localspec: Localspec, interrupt: Callable[[subprocess.Popen[bytes]], Ran], tmp_path: Path
) -> None:
    report = tmp_path / "out.json"
    process = localspec.start("bench", MODEL, "--repeat", "50", "--tokens", "16", "--json", str(report))
    assert process.stderr is not None
    seen = b""
    while b"1/12 " not in seen or b", 3 of 50" not in seen:
        seen += process.stderr.read1(4096)  # type: ignore[attr-defined]
    ran = interrupt(process)
    assert ran.code == 130
    assert "Interrupted" in ran.err
    assert "plain" in ran.out
    found = json.loads(report.read_text())
    assert not found["finished"]
    assert found["runs"]


def test_bad_input_is_refused(localspec: Localspec, suite: Path, tmp_path: Path) -> None:
    suite.write_text('{"prompt": "x"}\n{"promt": "y"}\n', encoding="utf-8")
    localspec.run("bench", MODEL, "--suite", str(suite)).refused(2, "Line 2", "prompt")
    localspec.run("bench", MODEL, "--suite", "quik").refused(2, "Unknown suite or file `quik`", "`quick`")
    localspec.run("bench", MODEL, "--against", "olama").refused(2, "Unknown baseline `olama`")
    localspec.run("bench", MODEL, "--json", str(tmp_path / "no" / "x.json")).refused(2, "No such folder")
    localspec.run("bench", MODEL, "--compare", str(tmp_path / "none.json")).refused(2, "No such file")
    for given in (("--against", "llamacpp"), ("--verifier", "rejection")):
        warm = localspec.run("bench", MODEL, "--temperature", "0.7", *given)
        warm.refused(2, "Only `--verifier exact` draws the samples", "Leave out `--temperature`")
    localspec.run("bench", "smollm2-135n").refused(1, "Unknown model", "`smollm2-135m`")


def test_tuning_lists_its_candidates(localspec: Localspec, suite: Path) -> None:
    ran = localspec.run("tune", MODEL, "--minutes", "0.2", "--suite", str(suite), "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert list(found) == ["winner", "speedup", "finished", "advice", "candidates"]
    assert found["finished"]
    assert any(candidate["speedup"] for candidate in found["candidates"])
    if found["winner"]:
        assert found["speedup"]["low"] > 1
    said = localspec.run("tune", MODEL, "--minutes", "0.1", "--suite", str(suite))
    assert said.code == 0
    assert "kept: " in said.out or "The default stays" in said.out
    assert "The search takes about 0.1 minutes; Ctrl-C ends it early" in said.err
    assert said.out.splitlines()[-1].startswith("hint: localspec ")
