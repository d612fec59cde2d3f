"""Errors: their copies for another process, and the names that they suggest."""

from __future__ import annotations

import pickle

import pytest

from localspec import errors


@pytest.mark.parametrize(
    "error",
    [
        errors.BadValue("wrong", "Mend it"),
        errors.UnknownName("Unknown part `x`", "x", ["y", "xx"]),
        errors.MissingExtra("torch", "export"),
        errors.TooLittleMemory("model", 2_000_000_000, 1_000_000_000),
        errors.ContextFull(9000, 8192),
        errors.EmptyPrompt(),
    ],
)
def test_an_error_survives_pickling(error: errors.LocalspecError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), copy.message, copy.hint) == (str(error), error.message, error.hint)
    assert copy.exit_code == error.exit_code
    assert vars(copy) == vars(error)


def test_the_nearest_names_are_at_most_five() -> None:
    names = ["llama-3.1-8b", *(f"qwen{number}-8b" for number in range(9))]
    hint = errors.nearest("qwen3-8", names, "localspec search")
    assert hint.startswith("Did you mean `qwen3-8b`, ")
    assert hint.count("qwen") == errors.NEAREST
    assert hint.endswith(" or `qwen4-8b`? `localspec search` shows them all")


def test_a_name_that_holds_the_wrong_one_is_the_nearest() -> None:
    hint = errors.nearest("R1", ["r2", "deepseek-r1-llama-8b"], "localspec search")
    assert hint == "Did you mean `deepseek-r1-llama-8b` or `r2`? `localspec search` shows them all"


def test_far_names_are_no_question() -> None:
    hint = errors.nearest("zzz", ["abc", "def"], "localspec list")
    assert hint == "The nearest names are `abc` and `def`; `localspec list` shows them all"
    assert errors.nearest("zzz", [], "localspec list") == "See `localspec list`"
