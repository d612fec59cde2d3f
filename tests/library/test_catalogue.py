from __future__ import annotations

import re
from collections import Counter

import pytest

from localspec.errors import UnknownModel, UsageError
from localspec.library import catalogue
from localspec.library.sources import Source


def test_names_and_aliases_are_lower_case_and_unique() -> None:
    names = [name for entry in catalogue.entries() for name in (entry.name, *entry.aliases)]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert all(name == name.lower() and "/" not in name for name in names)


def test_every_draft_is_in_the_catalogue() -> None:
    names = set(catalogue.names())
    assert {entry.draft for entry in catalogue.entries() if entry.draft} <= names
    assert catalogue.find("qwen2.5-coder-1.5b").draft == "qwen2.5-coder-0.5b"


@pytest.mark.parametrize("entry", catalogue.entries(), ids=catalogue.names())
def test_every_entry_is_complete(entry: catalogue.Entry) -> None:
    assert entry.sources
    assert entry.title
    assert entry.licence
    assert entry.context >= 512
    assert re.fullmatch(r"[0-9a-f]{64}|", entry.digest)
    # A file that only its name vouches for may not come from a package index.
    assert entry.digest or all(source.kind == "hf" for source in entry.sources)


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UnknownModel, match="There is no model called `smolm2-135m`") as caught:
        catalogue.find("smolm2-135m")
    assert caught.value.hint == "Did you mean `smollm2-135m`?"
    assert catalogue.find("SmolLM2").name == "smollm2-135m"


@pytest.mark.parametrize(
    "text",
    ["pypi:a-b==1.2", "pypi:a-part{1..3}==0.9.0", "hf:o/n", "hf:o/n@rev", "hf:o/n:Q4_K_M", "hf:o/n@r:f.gguf"],
)
def test_sources_are_written_as_they_are_read(text: str) -> None:
    assert str(Source.parse(text)) == text


def test_parts_keep_their_order() -> None:
    source = Source.parse("pypi:a-part{9..11}-x==0.9")
    assert source.requirements == ["a-part9-x==0.9", "a-part10-x==0.9", "a-part11-x==0.9"]


@pytest.mark.parametrize("text", ["hf:", "hf:o", "hf:o/n/m", "pypi:a", "pypi:--evil==1 x", "git:o/n", "x"])
def test_what_is_no_source_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a place to fetch a model from"):
        Source.parse(text)
