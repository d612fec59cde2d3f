"""How an answer is drafted: chosen by a request, told by the response, with the text that is expected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openai import BadRequestError, OpenAI
from serving import ASKED, GREEDY, Server, said

LONG: list[Any] = [{"role": "user", "content": "Count from 1 to 60, separated by commas."}]
OPTIONS = GREEDY | {"max_tokens": 150}


def drafting(**options: Any) -> dict[str, Any]:
    return {"extra_body": {"localspec": options}}


def told(client: OpenAI, messages: list[Any] = LONG, **options: Any) -> tuple[str, dict[str, Any]]:
    """Return the text of an answer, and what it tells of its drafts."""
    asked = OPTIONS | {"messages": messages} | drafting(stats=True) | options
    found = client.chat.completions.create(**asked)
    return found.choices[0].message.content, found.model_extra["localspec"]


def test_an_answer_tells_how_it_was_drafted(client: OpenAI) -> None:
    text, stats = told(client)
    assert text == said(client, messages=LONG, max_tokens=150)
    assert stats["tokens"] > 100
    assert stats["accepted"] <= stats["drafted"]
    assert stats["tokens_per_second"] > 0
    assert stats["tokens_per_pass"] >= 1
    assert {"estimated_speedup", "draft", "engine", "off_reason"} <= stats.keys()
    plain = client.chat.completions.create(messages=ASKED, **GREEDY)
    assert "localspec" not in (plain.model_extra or {})


def test_a_request_goes_without_a_draft(client: OpenAI) -> None:
    text, stats = told(client, **drafting(stats=True, draft="off"))
    assert (stats["drafted"], stats["tokens_per_pass"], stats["draft"]) == (0, 1, "off")
    assert stats["off_reason"]
    drafted, more = told(client, **drafting(stats=True, draft_length="fixed:tokens=6"))
    assert drafted == text
    assert more["accepted"] > 0
    assert more["tokens_per_pass"] > 1
    assert more["off_reason"] is None


def test_a_stream_tells_the_source_of_each_part(client: OpenAI) -> None:
    asked = drafting(stats=True, draft_length="fixed:tokens=6")
    chunks = list(client.chat.completions.create(stream=True, messages=LONG, **OPTIONS, **asked))
    said_so_far, sources, counted = "", [], 0
    for chunk in chunks[:-1]:
        text = chunk.choices[0].delta.content or ""
        parts = (chunk.model_extra or {}).get("localspec", {}).get("parts", [])
        assert "".join(part for part, _ in parts) == text
        if text:
            speed = (chunk.model_extra or {})["localspec"]
            assert speed["tokens"] > counted
            assert {"tokens_per_second", "estimated_speedup"} < speed.keys()
            counted = speed["tokens"]
        said_so_far += text
        sources += [source for _, source in parts]
    assert None in sources
    assert set(sources) - {None} <= {"suffix", "recycle", "draft_model", "hybrid"}
    assert len(set(sources)) > 1
    last = chunks[-1].model_extra["localspec"]
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    *_, counted = client.chat.completions.create(messages=LONG, **OPTIONS, **asked, **usage)
    assert counted.model_extra["localspec"]["tokens"] == counted.usage.completion_tokens == last["tokens"]
    assert said_so_far == said(client, messages=LONG, max_tokens=150)
    assert last["tokens"] > 100


def test_a_completion_tells_it_too(client: OpenAI) -> None:
    options = GREEDY | {"prompt": "1, 2, 3, 4, 5, 6, 7, 8,"} | drafting(stats=True)
    whole = client.completions.create(**options)
    chunks = list(client.completions.create(stream=True, **options))
    assert whole.model_extra["localspec"]["tokens"] == chunks[-1].model_extra["localspec"]["tokens"] == 40
    parts = [part for chunk in chunks for part in (chunk.model_extra or {})["localspec"].get("parts", [])]
    assert "".join(text for text, _ in parts) == whole.choices[0].text


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"draft": "ngram"}, "ngram.*`auto` or `off`"),
        ({"draft_length": "nonsense"}, "nonsense"),
        ({"draft_length": ""}, "draft-length"),
        ({"draft_length": "fixed:tokens=999"}, "tokens"),
        ({"draft": "off", "draft_length": "adaptive"}, "draft_length"),
        ({"stats": "yes"}, "stats"),
        ({"colour": True}, "colour"),
    ],
)
def test_a_draft_that_a_request_cannot_choose_is_refused(
    client: OpenAI, asked: dict[str, Any], named: str
) -> None:
    with pytest.raises(BadRequestError, match=named):
        said(client, **drafting(**asked))


@pytest.fixture(scope="module")
def other(server: Server) -> Iterator[OpenAI]:
    """A server with a drafter that takes no prediction, and what it answers is new to the other one."""
    running = Server(server.localspec, "--draft", "ngram")
    with OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as found:
        yield found
    assert running.stop() == 143


@pytest.mark.parametrize("parts", [False, True])
def test_the_expected_text_takes_few_passes(client: OpenAI, other: OpenAI, parts: bool) -> None:
    question = [{"role": "user", "content": f"Tell me a story about a fox{' and a crow' * parts}."}]
    text, _ = told(other, question)
    content: Any = (
        [{"type": "text", "text": text[:50]}, {"type": "text", "text": text[50:]}] if parts else text
    )
    found = client.chat.completions.create(
        messages=question,
        prediction={"type": "content", "content": content},
        **OPTIONS,
        **drafting(stats=True),
    )
    assert found.choices[0].message.content == text
    assert found.model_extra is not None
    assert found.model_extra["localspec"]["tokens_per_pass"] > 4
    assert found.usage is not None
    assert found.usage.completion_tokens_details is not None
    assert (found.usage.completion_tokens_details.accepted_prediction_tokens or 0) > 100


def test_a_wrong_expectation_changes_no_text(client: OpenAI) -> None:
    wrong = {"type": "content", "content": "The capital of France is a secret. <|im_end|> Nobody knows it."}
    assert said(client, prediction=wrong) == said(client)


def test_an_expectation_needs_a_drafter_that_copies(client: OpenAI, other: OpenAI) -> None:
    expected = {"type": "content", "content": "Paris"}
    with pytest.raises(BadRequestError, match="prediction"):
        said(client, prediction=expected, **drafting(draft="off"))
    with pytest.raises(BadRequestError, match="`ngram` cannot copy"):
        said(other, prediction=expected)
    _, stats = told(other, **drafting(stats=True, draft_length="fixed:tokens=6"))
    assert stats["draft"] == "ngram"
