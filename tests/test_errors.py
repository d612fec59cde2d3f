"""Errors go from one process to another as they are."""

from __future__ import annotations

import pickle

import pytest

from localspec import errors


@pytest.mark.parametrize(
    "error",
    [
        errors.BadValue("wrong", "Mend it"),
        errors.UnknownName("There is no `x`", "x", ["y", "xx"]),
        errors.MissingExtra("torch", "export"),
        errors.TooLittleMemory("model", 2_000_000_000, 1_000_000_000),
        errors.ContextFull(9000, 8192),
        errors.EmptyPrompt(),
    ],
)
def test_an_error_survives_the_way(error: errors.LocalspecError) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error)
    assert (str(found), found.message, found.hint) == (str(error), error.message, error.hint)
    assert found.exit_code == error.exit_code
    assert vars(found) == vars(error)
