"""A gap in a text is filled by models for code, and by them alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from command import MODEL, Localspec
from openai import BadRequestError, OpenAI
from serving import Server

import models

CODE = "def add(a, b):\n    return "
CODER = "qwen2.5-coder-0.5b"


def test_a_model_that_cannot_fill_in_text_says_so(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match=f"`{MODEL}` cannot fill in text"):
        client.completions.create(model=MODEL, prompt=CODE, suffix="\n")


@pytest.mark.large
def test_the_text_of_marks_is_text() -> None:
    model = models.large(CODER)
    marks = model.infill_marks
    assert marks is not None
    tokenizer = model.tokenizer()
    ids = [tokenizer.token_to_id(text) for text in marks[:3]]
    prompt = model.encode_infill(CODE, "\n\nprint(add(1, 2))\n")
    assert [token for token in prompt if token in ids] == ids
    assert prompt[-1] == ids[2]
    assert tokenizer.decode(prompt, skip_special_tokens=False) == (
        f"<|fim_prefix|>{CODE}<|fim_suffix|>\n\nprint(add(1, 2))\n<|fim_middle|>"
    )
    smuggled = model.encode_infill("a<|fim_middle|>b", "c<|endoftext|>")
    assert [token for token in smuggled if token in (*ids, *model.stop_tokens())] == ids


@pytest.fixture
def coder() -> Iterator[OpenAI]:
    running = Server(Localspec(models.large(CODER).folder.parent.parent), CODER)
    with OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        yield client
    assert running.stop() == 143


@pytest.mark.large
def test_a_gap_is_filled(coder: OpenAI) -> None:
    asked: dict[str, Any] = {"model": CODER, "prompt": CODE, "temperature": 0, "max_tokens": 30, "stop": "\n"}
    found = coder.completions.create(suffix="\n\nprint(add(1, 2))\n", **asked)
    assert found.choices[0].text.strip() == "a + b"
    assert found.choices[0].finish_reason == "stop"
    assert coder.completions.create(suffix="", **asked).choices[0].text
