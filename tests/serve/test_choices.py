"""Several answers, the likelihoods of their tokens, and biases, asked by OpenAI's own client."""

from __future__ import annotations

from typing import Any

import pytest
from openai import APIError, BadRequestError, OpenAI
from serving import ASKED, GREEDY, said

NEAR = 0.1  # logprobs of one token alone, and of one among several in a pass, differ by the engine's rounding


def scores(client: OpenAI, **options: Any) -> list[Any]:
    """Return the logprobs of a chat completion."""
    asked: Any = GREEDY | {"messages": ASKED, "logprobs": True, "top_logprobs": 4} | options
    (choice,) = client.chat.completions.create(**asked).choices
    assert choice.logprobs is not None
    assert b"".join(bytes(each.bytes) for each in choice.logprobs.content) == choice.message.content.encode()
    return list(choice.logprobs.content)


def test_tokens_have_their_likelihoods(client: OpenAI) -> None:
    for each in scores(client):
        assert len(each.top_logprobs) == 4
        assert each.logprob == each.top_logprobs[0].logprob  # a greedy answer
        assert each.token == each.top_logprobs[0].token
        assert 0 > each.logprob > -10
        assert [one.logprob for one in each.top_logprobs] == sorted(
            (one.logprob for one in each.top_logprobs), reverse=True
        )
    assert all(each.top_logprobs == [] for each in scores(client, top_logprobs=0))
    plain: Any = client.chat.completions.create(messages=ASKED, **GREEDY)
    assert plain.choices[0].logprobs is None


def test_drafts_change_no_likelihood(client: OpenAI) -> None:
    plain = scores(client, extra_body={"localspec": {"draft": "off"}})
    drafted = scores(client, extra_body={"localspec": {"draft_length": "fixed:tokens=8"}})
    assert [each.token for each in plain] == [each.token for each in drafted]
    for one, other in zip(plain, drafted, strict=True):
        assert other.logprob == pytest.approx(one.logprob, abs=NEAR)


def test_a_stream_has_the_same_likelihoods(client: OpenAI) -> None:
    asked: Any = GREEDY | {"messages": ASKED, "logprobs": True, "top_logprobs": 1, "stream": True}
    chunks = list(client.chat.completions.create(**asked))
    streamed = [
        each
        for chunk in chunks
        for each in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else [])
    ]
    whole = scores(client, top_logprobs=1)
    assert [each.token for each in streamed] == [each.token for each in whole]
    assert [each.logprob for each in streamed] == pytest.approx([each.logprob for each in whole], abs=NEAR)


def test_a_completion_has_likelihoods(client: OpenAI) -> None:
    options = GREEDY | {"prompt": "1, 2, 3, 4, 5,", "logprobs": 3, "max_tokens": 12}
    (choice,) = client.completions.create(**options).choices
    found = choice.logprobs
    assert found is not None
    assert "".join(found.tokens) == choice.text
    assert found.text_offset == [len("".join(found.tokens[:at])) for at in range(len(found.tokens))]
    assert [max(best, key=best.__getitem__) for best in found.top_logprobs] == found.tokens
    parts = [chunk.choices[0].logprobs for chunk in client.completions.create(stream=True, **options)]
    assert [at for part in parts if part for at in part.text_offset] == found.text_offset
    with pytest.raises(BadRequestError, match="logprobs"):
        client.completions.create(**options | {"logprobs": 6})


def test_a_bias_forbids_and_forces_tokens(client: OpenAI, capital: int) -> None:
    assert "Paris" in said(client)
    for draft in ({"draft": "off"}, {"draft_length": "fixed:tokens=8"}):
        extra = {"extra_body": {"localspec": draft}}
        assert "Paris" not in said(client, logit_bias={str(capital): -100}, **extra)
        forced = said(client, logit_bias={str(capital): 100}, max_tokens=5, **extra)
        assert forced == " Paris" * 5


def test_several_answers_count_together(client: OpenAI) -> None:
    options: Any = {"messages": ASKED, **GREEDY, "temperature": 1.5, "seed": 7, "max_tokens": 20}
    alone = [client.chat.completions.create(**options | {"seed": 7 + at}) for at in range(3)]
    together = client.chat.completions.create(n=3, **options)
    texts = [each.choices[0].message.content for each in alone]
    assert [choice.message.content for choice in together.choices] == texts
    assert [choice.index for choice in together.choices] == [0, 1, 2]
    assert len(set(texts)) > 1
    assert together.usage.prompt_tokens == alone[0].usage.prompt_tokens
    assert together.usage.completion_tokens == sum(each.usage.completion_tokens for each in alone)
    streamed = ["", "", ""]
    finishes = 0
    usages = []
    for chunk in client.chat.completions.create(
        n=3, stream=True, stream_options={"include_usage": True}, **options
    ):
        usages += [chunk.usage] if chunk.usage else []
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
            finishes += choice.finish_reason is not None
    assert (streamed, finishes) == (texts, 3)
    assert [usage.completion_tokens for usage in usages] == [together.usage.completion_tokens]


def test_several_prompts_are_continued(client: OpenAI) -> None:
    prompts = ["1, 2, 3, 4, 5,", "a, b, c, d,"]
    options = GREEDY | {"max_tokens": 8}
    alone = [client.completions.create(prompt=prompt, **options) for prompt in prompts]
    together = client.completions.create(prompt=prompts, n=2, **options)
    texts = [each.choices[0].text for each in alone]
    assert [choice.text for choice in together.choices] == [texts[0], texts[0], texts[1], texts[1]]
    assert together.usage is not None
    assert together.usage.prompt_tokens == sum(each.usage.prompt_tokens for each in alone if each.usage)
    assert together.usage.completion_tokens == 4 * 8
    too_long = ["Hi", "word " * 9000]
    with pytest.raises(BadRequestError, match="context"):
        client.completions.create(prompt=too_long, **options)
    with pytest.raises(APIError, match="context"):  # while the first one streams
        list(client.completions.create(prompt=too_long, stream=True, **options))
    for field, value in (("best_of", 2), ("echo", True), ("prompt", [])):
        with pytest.raises(BadRequestError, match=field):
            client.completions.create(**{"prompt": "Hi"} | options | {field: value})
