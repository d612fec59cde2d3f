"""The prompt of a command: its argument, and the text on stdin."""

from __future__ import annotations

import sys

from localspec.errors import PromptError


def read_prompt(argument: str | None) -> str | None:
    """Return the argument followed by the text on stdin, or None when neither is given.

    Raises PromptError for bytes that are not UTF-8.
    """
    piped = None if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
    text = None if argument is piped is None else "\n\n".join(filter(None, (argument, piped)))
    if text and any("\ud800" <= character <= "\udfff" for character in text):  # undecodable bytes
        raise PromptError("The prompt is not UTF-8 text", "Check where it comes from, and convert it")
    return text
