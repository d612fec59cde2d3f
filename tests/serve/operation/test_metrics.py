"""The counts of a server, and the lines of its log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from command import MODEL, Localspec
from prometheus_client.parser import text_string_to_metric_families
from serving import Server

SECRET = "a-secret-key"
BODY = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Count from one to twenty, twice."}],
    "temperature": 0,
    "max_tokens": 60,
}


@pytest.fixture(scope="module")
def counting(localspec: Localspec) -> Iterator[Server]:
    yield (running := Server(localspec, MODEL, "--api-key", SECRET, "--log", "json"))
    if not running.said:
        running.stop()


def ask(server: Server, method: str, path: str, body: Any = None) -> tuple[int, str]:
    return server.ask(method, path, body, authorization=f"Bearer {SECRET}")


def metrics(server: Server) -> dict[tuple[str, ...], float]:
    """Return the samples by name and labels."""
    status, text = ask(server, "GET", "/metrics")
    assert status == 200
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_answers_are_counted(counting: Server) -> None:
    before = metrics(counting)
    whole = json.loads(ask(counting, "POST", "/v1/chat/completions", BODY)[1])
    ask(counting, "POST", "/v1/chat/completions", BODY | {"stream": True})
    after = metrics(counting)

    def counted(name: str, *labels: str) -> float:
        key = (f"localspec_{name}_total", *labels)
        return after[key] - before.get(key, 0)

    usage = whole["usage"]
    details = usage["completion_tokens_details"]
    drafted = details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"]
    assert counted("requests", "/v1/chat/completions", "200") == 2
    assert counted("prompt_tokens", MODEL) == 2 * usage["prompt_tokens"]
    assert counted("answer_tokens", MODEL) == 2 * usage["completion_tokens"]
    assert counted("cached_prompt_tokens", MODEL) > 0
    assert counted("accepted_tokens", MODEL) <= counted("drafted_tokens", MODEL)
    assert counted("drafted_tokens", MODEL) >= drafted
    assert 0 < counted("passes", MODEL) <= counted("answer_tokens", MODEL)
    length = counted("drafted_tokens", MODEL) / counted("passes", MODEL)
    assert after["localspec_draft_length", MODEL] == pytest.approx(length)
    while metrics(counting)["localspec_queue_length", MODEL]:  # the last answer's thread ends behind it
        pass
    assert after["localspec_loaded_models",] == 1
    assert after["process_resident_memory_bytes",] > 10**7


def test_made_up_paths_are_one(counting: Server) -> None:
    for number in range(3):
        assert ask(counting, "GET", f"/nothing/{number}")[0] == 404
    assert counting.ask("GET", "/v1/models")[0] == 401
    found = metrics(counting)
    assert found["localspec_requests_total", "other", "404"] == 3
    assert found["localspec_requests_total", "/v1/models", "401"] == 1
    assert not [key for key in found if any(label.startswith("/nothing") for label in key)]


def test_counts_need_the_key(counting: Server) -> None:
    assert counting.ask("GET", "/metrics")[0] == 401
    assert counting.ask("GET", "/health")[0] == 200


def test_each_request_is_a_line_without_its_text(counting: Server) -> None:
    status, told = ask(counting, "POST", "/v1/chat/completions", BODY)
    assert status == 200
    counting.stop()
    assert SECRET not in counting.said
    assert "twenty" not in counting.said
    lines = [json.loads(line) for line in counting.said.splitlines() if line.startswith("{")]
    last = lines[-1]
    assert set(last) == {
        *("time", "client", "method", "path", "model", "status", "seconds"),
        *("prompt_tokens", "tokens", "accepted", "drafted"),
    }
    usage = json.loads(told)["usage"]
    assert (last["method"], last["path"], last["model"]) == ("POST", "/v1/chat/completions", MODEL)
    assert (last["status"], last["tokens"]) == (200, usage["completion_tokens"])
    assert last["prompt_tokens"] == usage["prompt_tokens"]
    assert any(line["status"] == 401 and line["model"] is None for line in lines)


def test_an_unknown_form_of_log_is_refused(localspec: Localspec) -> None:
    localspec.run("serve", "--log", "xml").refused(2, "`xml`", "json")
