"""Everything localspec raises on purpose.

LocalspecError                 exit code 1
├── UsageError                 exit code 2: the command line or a part's options are wrong
│   ├── UnknownName            a part, option or value that does not exist; names the nearest
│   └── BadValue               an option's value that is out of range or unreadable
├── MissingExtra               a library that an extra brings
├── ModelError                 something about a model
│   ├── UnknownModel           no catalogue entry, file or repository of that name
│   ├── BrokenModel            a file that is truncated, damaged or not what it says
│   ├── UnsupportedModel       an architecture, tensor type or tokenizer that cannot be read
│   └── VocabularyMismatch     a draft that writes other tokens than its target
├── PromptError                something about what was asked
│   ├── EmptyPrompt            nothing was asked
│   ├── ContextFull            more tokens than the model's context holds
│   └── PromptTooLong          more tokens than the model was compiled for
├── DeviceError                something about a device
│   ├── UnknownDevice          no such device; names those there are
│   ├── TooLittleMemory        a model that does not fit; says both numbers
│   └── DriverFailed           a driver or compiler that gave up or died
├── NetworkError               a download that did not work
├── DigestMismatch             a download that is not the file that was expected
└── StorageError               the disk is full, or a folder cannot be written
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LocalspecError(Exception):
    """What is wrong, and in `hint` what to do next."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n\nhint: {self.hint}"

    def __reduce__(self) -> tuple[object, ...]:
        """Go through a pipe between processes, whatever the arguments of `__init__` are."""
        return _restored, (type(self), self.message, self.hint), self.__dict__


class UsageError(LocalspecError):
    """The command line is wrong."""

    exit_code = 2


class UnknownName(UsageError):
    """A part, option or value that does not exist."""

    def __init__(self, message: str, wrong: str, valid: Iterable[str]) -> None:
        super().__init__(message, suggestion(wrong, valid))


class BadValue(UsageError):
    """An option's value that is out of range or unreadable."""


def no_such_layer(layer: int, layers: int) -> BadValue:
    """Say that a model of so many `layers` cannot be left after `layer` of them."""
    return BadValue(
        f"There is no exit after layer {layer}: the model has {layers} layers",
        f"Choose one from 1 to {layers - 1}",
    )


def not_together(one: str, other: str) -> BadValue:
    """Say that two options of an engine exclude each other."""
    return BadValue(f"`{one}` and `{other}` exclude each other", "Leave one of them out")


class MissingExtra(LocalspecError):
    """A library that one of localspec's extras brings."""

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(f"`{library}` is not installed", f"Type `pip install 'localspec[{extra}]'`")


class ModelError(LocalspecError):
    """Something is wrong with a model."""


class UnknownModel(ModelError):
    """No catalogue entry, file, folder or repository has that name."""


class BrokenModel(ModelError):
    """A model file is truncated, damaged or not what it says."""


class UnsupportedModel(ModelError):
    """An architecture, tensor type or tokenizer that cannot be read."""


class VocabularyMismatch(ModelError):
    """A draft writes other tokens than its target."""


class PromptError(LocalspecError):
    """Something is wrong with what was asked."""


class EmptyPrompt(PromptError):
    """Nothing was asked."""

    def __init__(self) -> None:
        super().__init__("The prompt is empty", 'Type something to answer: localspec chat MODEL "..."')


class ContextFull(PromptError):
    """More tokens than the model's context holds."""

    def __init__(self, tokens: int, context: int) -> None:
        super().__init__(
            f"The text has {tokens} tokens and the model's context holds {context}",
            "Shorten the prompt, or choose a model with a longer context",
        )
        self.tokens = tokens
        self.context = context


class PromptTooLong(PromptError):
    """More tokens than the model was compiled for."""

    def __init__(self, tokens: int, most: int, hint: str) -> None:
        super().__init__(f"The prompt has {tokens} tokens and the model was compiled for {most}", hint)
        self.tokens = tokens
        self.most = most


class DeviceError(LocalspecError):
    """Something is wrong with a device."""


class UnknownDevice(DeviceError):
    """There is no such device."""

    def __init__(self, device: str, there: Iterable[str]) -> None:
        names = ", ".join(f"`{name}`" for name in there)
        super().__init__(f"There is no device `{device}`", f"There is {names or 'none'}")


class TooLittleMemory(DeviceError):
    """A model does not fit in the memory that is free."""

    def __init__(self, what: str, needed: int, free: int) -> None:
        super().__init__(
            f"`{what}` needs about {needed / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are free",
            "Close something, or choose a smaller model",
        )
        self.needed = needed
        self.free = free


class DriverFailed(DeviceError):
    """A driver or a compiler gave up, or died."""


class NetworkError(LocalspecError):
    """A download that did not work."""


class DigestMismatch(LocalspecError):
    """A download that is not the file that was expected."""


class StorageError(LocalspecError):
    """The disk is full, or a folder cannot be written."""


def _restored(kind: type[LocalspecError], message: str, hint: str | None) -> LocalspecError:
    error = kind.__new__(kind)
    LocalspecError.__init__(error, message, hint)
    return error


def suggestion(wrong: str, valid: Iterable[str]) -> str:
    """Return a hint that names what `wrong` may have meant, else everything there is."""
    names = list(valid)
    near = difflib.get_close_matches(wrong, names, n=3, cutoff=0.5)
    if near:
        return "Did you mean " + " or ".join(f"`{name}`" for name in near) + "?"
    if not names:
        return "It takes none"
    return "There is " + ", ".join(f"`{name}`" for name in names)
