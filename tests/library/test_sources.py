"""The names that mean a model on a hub."""

from __future__ import annotations

from typing import Any

import pytest

from localspec.errors import UsageError
from localspec.library.sources import Source, without_address

PAGE = "https://huggingface.co/Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        (PAGE, "hf:Qwen/Qwen3-8B"),
        (f"{PAGE}/", "hf:Qwen/Qwen3-8B"),
        (f"{PAGE}?library=transformers#usage", "hf:Qwen/Qwen3-8B"),
        (f"{PAGE}/tree/main", "hf:Qwen/Qwen3-8B"),
        (f"{PAGE}/tree/v1.0", "hf:Qwen/Qwen3-8B@v1.0"),
        (f"{PAGE}/tree/main/sub/folder", "hf:Qwen/Qwen3-8B"),
        (f"{PAGE}/blob/main/q-Q4_K_M.gguf", "hf:Qwen/Qwen3-8B:q-Q4_K_M.gguf"),
        (f"{PAGE}/resolve/v2/a/q.gguf?download=true", "hf:Qwen/Qwen3-8B@v2:a/q.gguf"),
        (f"{PAGE}/resolve/main/q%20q.gguf", "hf:Qwen/Qwen3-8B:q q.gguf"),
        ("http://www.huggingface.co/o/m", "hf:o/m"),
        ("HTTPS://HuggingFace.co/o/m", "hf:o/m"),
        ("huggingface.co/o/m", "hf:o/m"),
        ("hf.co/o/m:Q4_K_M", "hf:o/m:Q4_K_M"),
        ("https://hf.co/o/m-GGUF:q4_0", "hf:o/m-GGUF:q4_0"),
        ("http://127.0.0.1:8080/o/m", "hf:o/m"),
    ],
)
def test_the_address_of_a_page_is_the_models_name(name: str, meant: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:8080/")
    assert without_address(name) == meant
    Source.parse(meant)


@pytest.mark.parametrize(
    "name",
    [
        "smollm2-135m",
        "hf:o/m",
        "pypi:a==1",
        "./a.b/c.gguf",
        "../m.gguf",
        "a.b/c",
        "/x/y.z/m",
        "~/m.gguf",
        "o/m",
    ],
)
def test_other_names_stay(name: str) -> None:
    assert without_address(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "https://example.com/m.gguf",
        "https://huggingface.co",
        "https://huggingface.co/",
        "https://huggingface.co/Qwen",
        "https://huggingface.co/datasets/o/d",
        "https://huggingface.co/o/m/discussions/1",
        "https://github.com/o/m",
    ],
)
def test_other_addresses_are_refused(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        without_address(name)
    assert "hf:OWNER/NAME" in str(caught.value.hint)
