"""`search` and `list --available`: which models are found, in which order, and what is said of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from command import Localspec

from localspec.cli.models import search
from localspec.library import catalogue

USES = {"chat", "code", "reasoning", "raw text", "speech", "speakers"}


def names(words: str) -> list[str]:
    return [entry.name for entry in search.matches(catalogue.entries(), words.split())]


def listed(localspec: Localspec, *words: str) -> list[dict[str, Any]]:
    found = localspec.run("search", *words, "--json")
    assert (found.code, found.err) == (0, "")
    values: list[dict[str, Any]] = json.loads(found.out)
    return values


@pytest.mark.parametrize(
    ("words", "first"),
    [("qwen3-8b", "qwen3-8b"), ("qwen3:8b", "qwen3-8b"), ("8b llama", "llama-3.1-8b"), ("phi", "phi-4-mini")],
)
def test_the_best_match_comes_first(words: str, first: str) -> None:
    assert names(words)[0] == first


def test_every_word_must_match() -> None:
    assert names("qwen coder") == [name for name in catalogue.names() if name.startswith("qwen2.5-coder")]
    assert names("qwen whisper") == []
    assert names("") == catalogue.names()
    assert names("distill") == [name for name in catalogue.names() if name.startswith("deepseek")]


def test_every_model_has_a_known_use() -> None:
    assert all(set(entry.use.split(", ")) <= USES for entry in catalogue.entries())
    assert all((entry.use == "speech") == (entry.kind == "speech") for entry in catalogue.entries())


def test_a_download_has_the_size_of_the_published_weights() -> None:
    assert catalogue.find("qwen3-8b").download_bytes() == int(8.2e9 * 0.56)
    assert catalogue.find("starcoder2-3b").download_bytes() == int(3.03e9 * 2)


def test_a_model_fits_if_its_memory_is_free() -> None:
    entry = catalogue.find("qwen3-8b")
    memory = entry.memory("int4")
    assert search.model_row(entry, memory)["fits"] is True
    assert search.model_row(entry, memory - 1)["fits"] is False


def test_the_table(fresh: Localspec) -> None:
    found = fresh.run("search")
    assert found.code == 0
    title, *lines = found.out.splitlines()
    assert title.split() == ["name", "use", "disk", "memory", "fits", "draft"]
    assert [line.split()[0] for line in lines] == catalogue.names()
    assert max(map(len, lines)) <= 80
    assert "of memory free" in found.err
    assert fresh.run("list", "--available").out.splitlines()[0] == title


def test_json(fresh: Localspec) -> None:
    (row,) = listed(fresh, "qwen3:8b")
    entry = catalogue.find("qwen3-8b")
    assert row["use"] == ["chat", "reasoning"]
    assert (row["disk"], row["memory"]) == (entry.download_bytes(), entry.memory("int4"))
    assert (row["draft"], row["precision"], row["kind"]) == ("qwen3-0.6b", "int4", "text")
    assert {row["kind"] for row in listed(fresh, "whisper")} == {"speech"}
    assert listed(fresh, "no-such-model") == []
    assert json.loads(fresh.run("list", "--available", "--json").out)[0]["name"] == catalogue.names()[0]


def test_nothing_found_suggests_names(fresh: Localspec) -> None:
    fresh.run("search", "qwem3-8b").refused(1, "No model matches `qwem3-8b`", "`qwen3-8b`")
