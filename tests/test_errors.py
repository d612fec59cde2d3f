"""Errors can be pickled, to pass from one process to another."""

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
