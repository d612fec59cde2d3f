"""One answer: its JSON, the same tokens with every draft, where it ends, and its streams."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import pytest
from command import COMMAND, MODEL, SECONDS, Localspec

from localspec.library import Library

PROMPT = "Repeat three times: the quick brown fox jumps over the lazy dog."
EXACT = ("--engine", "openvino:group=0")
FIELDS = [
    "text",
    "token_ids",
    "finish_reason",
    "prompt_tokens",
    "cached_prompt_tokens",
    "tokens",
    "seconds",
    "prompt_seconds",
    "tokens_per_second",
    "speculation",
    "decoding",
    "model",
    "engine",
    "engine_reason",
    "tuned",
    "device",
]
SPECULATION = [
    "drafter",
    "draft_length",
    "verifier",
    "lossless",
    "passes",
    "drafted",
    "accepted",
    "acceptance_rate",
    "tokens_per_pass",
    "draft_seconds",
    "target_seconds",
    "sources",
    "estimated_speedup",
    "expected_gain",
    "off_reason",
]


class Answer(Protocol):
    def __call__(self, *options: str, prompt: str = PROMPT) -> dict[str, Any]: ...


@pytest.fixture(scope="session")
def answer(localspec: Localspec) -> Answer:
    """Return the JSON of an answer of at most 40 tokens; each command runs once a session."""

    @cache
    def ask(*options: str, prompt: str = PROMPT) -> dict[str, Any]:
        return localspec.chat(prompt, "--json", "--max-tokens", "40", *EXACT, *options).values

    return ask


@pytest.fixture(scope="session")
def plain(answer: Answer) -> dict[str, Any]:
    return answer("--draft", "off")


def test_json_has_the_documented_keys(plain: dict[str, Any]) -> None:
    assert list(plain) == FIELDS
    assert list(plain["speculation"]) == SPECULATION


def test_json_describes_the_answer(plain: dict[str, Any], answer: Answer) -> None:
    assert (plain["model"], plain["engine"], plain["device"]) == (MODEL, "openvino:group=0", "CPU")
    assert plain["tokens"] == len(plain["token_ids"]) <= 40
    assert 0 < plain["prompt_seconds"] < plain["seconds"]
    assert plain["tokens_per_second"] > 0
    speculation = plain["speculation"]
    assert speculation["off_reason"] == "it was switched off"
    assert (speculation["drafter"], speculation["lossless"]) == ("none", True)
    assert (speculation["passes"], speculation["drafted"], speculation["accepted"]) == (plain["tokens"], 0, 0)
    assert speculation["acceptance_rate"] is None
    drafted = answer("--draft", "ngram", "--draft-length", "fixed:tokens=3")["speculation"]
    assert (drafted["drafter"], drafted["draft_length"]) == ("ngram", "fixed:tokens=3")
    assert drafted["drafted"] >= drafted["accepted"] > 0
    assert drafted["acceptance_rate"] == round(drafted["accepted"] / drafted["drafted"], 4)
    assert drafted["tokens_per_pass"] > 1
    assert drafted["off_reason"] is None


@pytest.mark.parametrize("draft", ["ngram", f"draft_model:name={MODEL}", MODEL])
def test_a_draft_gives_the_same_tokens(plain: dict[str, Any], answer: Answer, draft: str) -> None:
    found = answer("--draft", draft, "--draft-length", "fixed:tokens=3")
    assert found["token_ids"] == plain["token_ids"]
    assert (found["text"], found["finish_reason"]) == (plain["text"], plain["finish_reason"])
    assert found["speculation"]["passes"] < plain["speculation"]["passes"]


def test_contrastive_search_is_reported_as_a_different_text(plain: dict[str, Any], answer: Answer) -> None:
    found = answer("--decoding", "contrastive:alpha=0.9,k=3", "--max-tokens", "12")
    assert (plain["decoding"], found["decoding"]) == ("standard", "contrastive:alpha=0.9,k=3")
    assert found["engine"] == "openvino:group=0,hidden=True"
    assert found["speculation"]["lossless"] is False
    assert found["speculation"]["off_reason"] == "contrastive search writes a text of its own"
    assert (found["tokens"], found["speculation"]["passes"]) == (12, 12)
    assert found["token_ids"] != plain["token_ids"][:12]


def test_the_first_layers_draft_for_the_model(plain: dict[str, Any], answer: Answer) -> None:
    found = answer("--draft", "early_exit:layer=24", "--draft-length", "fixed:tokens=2")
    assert found["engine"] == "openvino:group=0,exit=24"
    assert found["token_ids"] == plain["token_ids"]
    assert found["speculation"]["drafted"] > 10


def test_a_seed_repeats_an_answer_with_and_without_a_draft(answer: Answer) -> None:
    sampled = ("--temperature", "0.9", "--seed")
    first = answer(*sampled, "3", "--draft", "ngram", "--draft-length", "fixed:tokens=2")
    again = answer(*sampled, "3", "--draft", "off")
    other = answer(*sampled, "4", "--draft", "off")
    assert first["token_ids"] == again["token_ids"] != other["token_ids"]


def test_penalties_make_repeated_tokens_less_likely(answer: Answer) -> None:
    options = ("--draft", "off", "--raw", "--max-tokens", "12")
    plain = answer(*options, prompt="one two one two one two")["token_ids"]
    assert len(set(plain)) < len(plain)
    for penalty in ("--presence-penalty", "--frequency-penalty"):
        tokens = answer(*options, penalty, "100", prompt="one two one two one two")["token_ids"]
        assert len(set(tokens)) == len(tokens)


def test_max_tokens_ends_an_answer(answer: Answer, plain: dict[str, Any]) -> None:
    found = answer("--draft", "off", "--max-tokens", "5")
    assert found["finish_reason"] == "length"
    assert found["token_ids"] == plain["token_ids"][:5]
    assert plain["text"].startswith(found["text"])


def test_a_stop_text_ends_an_answer_before_it(answer: Answer, plain: dict[str, Any]) -> None:
    stop = plain["text"][12:16]
    found = answer("--draft", "off", "--stop", stop, "--stop", "never written")
    assert found["finish_reason"] == "stop"
    assert found["text"] == plain["text"][: plain["text"].index(stop)]


def rendered(localspec: Localspec, *messages: tuple[str, str]) -> int:
    """Count the tokens of a conversation."""
    model = Library(localspec.home).find(MODEL)
    assert model is not None
    template = model.template()
    assert template is not None
    text = template.render([{"role": role, "content": content} for role, content in messages])
    return len(model.tokenizer().encode(text, add_special_tokens=False).ids)


def test_the_prompt_goes_through_the_template(localspec: Localspec, plain: dict[str, Any]) -> None:
    assert plain["prompt_tokens"] == rendered(localspec, ("user", PROMPT))


def test_system_comes_first(localspec: Localspec, answer: Answer, plain: dict[str, Any]) -> None:
    found = answer("--system", "You speak only French, with many words.")
    expected = rendered(localspec, ("system", "You speak only French, with many words."), ("user", PROMPT))
    assert found["prompt_tokens"] == expected != plain["prompt_tokens"]


def test_raw_continues_the_prompt_itself(answer: Answer) -> None:
    found = answer("--raw", "--max-tokens", "4", prompt="The capital of France is")
    assert found["prompt_tokens"] == 5
    assert "Paris" in found["text"]


def test_a_prompt_on_stdin(localspec: Localspec, plain: dict[str, Any]) -> None:
    options = ("--json", "--max-tokens", "40", "--draft", "off", *EXACT)
    alone = localspec.chat(*options, stdin=PROMPT).values
    assert alone["token_ids"] == plain["token_ids"]
    both = localspec.chat("Repeat this:", *options, "--max-tokens", "2", stdin="a piece of text\n").values
    assert both["prompt_tokens"] == rendered(localspec, ("user", "Repeat this:\n\na piece of text\n"))


def test_a_file_gets_the_answer_and_nothing_else(
    localspec: Localspec, plain: dict[str, Any], tmp_path: Path
) -> None:
    target = tmp_path / "answer.txt"
    command = [*COMMAND, "chat", MODEL, PROMPT, "--max-tokens", "40", "--draft", "off", "--stats", *EXACT]
    with target.open("wb") as file:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.PIPE,
            env=localspec.environment(),
            timeout=SECONDS,
            check=True,
        )
    assert target.read_text("utf-8") == plain["text"] + "\n"
    speculation = done.stderr.decode()
    assert f" tokens/s | {plain['tokens']} tokens | prompt " in speculation
    assert "speculation off: it was switched off" in speculation
    assert "\x1b" not in speculation


CIRCLE = "The cat sat on the mat. The cat sat on the mat."


def test_an_answer_that_repeats_itself_ends_at_the_same_token_with_and_without_a_draft(
    localspec: Localspec,
) -> None:
    circle = ("chat", MODEL, CIRCLE, "--raw", "--temperature", "0", *EXACT)
    drafted = localspec.run(*circle, "--json")
    assert "The answer ends here: it repeats one passage; `--no-loop-guard` lets it go on" in drafted.err
    assert drafted.values["finish_reason"] == "repeating"
    assert drafted.values["tokens"] < 1200
    assert drafted.values["text"].count("The cat sat on the mat.") > 100
    plain = localspec.run(*circle, "--json", "--draft", "off")
    assert plain.values["token_ids"] == drafted.values["token_ids"]


def test_a_single_answer_has_a_cap_that_is_told(localspec: Localspec) -> None:
    found = localspec.run(
        *("chat", MODEL, CIRCLE, "--raw", "--temperature", "0", *EXACT, "--no-loop-guard", "--json")
    )
    assert (found.values["finish_reason"], found.values["tokens"]) == ("length", 4096)
    assert "The answer ends here: it has 4,096 tokens; `--max-tokens` allows more" in found.err
