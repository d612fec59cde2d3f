"""The errors that localspec raises on purpose.

LocalspecError                 exit code 1
├── UsageError                 exit code 2: the command line or a part's options are wrong
│   ├── UnknownName            an unknown part, option or value; the hint suggests the nearest names
│   └── BadValue               an option's value that is out of range or unreadable
├── MissingExtra               a library that is not installed; the hint names the extra that installs it
├── ModelError                 a problem with a model
│   ├── UnknownModel           no catalogue entry, file or repository of that name
│   ├── BrokenModel            a truncated or damaged file, or one of another format than it claims
│   ├── UnsupportedModel       an architecture, tensor type or tokenizer that cannot be read
│   └── VocabularyMismatch     a draft whose vocabulary differs from its target's
├── PromptError                a problem with a prompt
│   ├── EmptyPrompt            an empty prompt
│   ├── ContextFull            more tokens than the model's context holds
│   └── PromptTooLong          more tokens than the model was compiled for
├── DeviceError                a problem with a device
│   ├── UnknownDevice          no device of that name; the hint lists the available ones
│   ├── TooLittleMemory        a model that does not fit; the message has both sizes
│   └── DriverFailed           a driver or compiler that failed or crashed
├── NetworkError               a failed download
├── ChildFailed            a process that localspec started could not start, or died
├── DigestMismatch             a downloaded file with the wrong checksum
└── StorageError               a full disk, or a file or folder that cannot be written
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

NEAREST = 5  # names that a hint suggests


class LocalspecError(Exception):
    """An error with a message and a `hint` on what to do next."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n\nhint: {self.hint}"

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling, whatever the arguments of `__init__` are."""
        return _restored, (type(self), self.message, self.hint), self.__dict__


class UsageError(LocalspecError):
    """The command line is wrong."""

    exit_code = 2


class UnknownName(UsageError):
    """An unknown part, option or value."""

    def __init__(self, message: str, wrong: str, valid: Iterable[str]) -> None:
        super().__init__(message, suggestion(wrong, valid))


class BadValue(UsageError):
    """An option's value that is out of range or unreadable."""


def no_such_layer(layer: int, layers: int) -> BadValue:
    """Return the error for an early exit after `layer` in a model of `layers` layers."""
    return BadValue(
        f"Cannot exit after layer {layer}: the model has {layers} layers",
        f"Choose one from 1 to {layers - 1}",
    )


def one_of(**options: object) -> None:
    """Raise BadValue if more than one of an engine's `options` is set: they exclude each other."""
    given = [name for name, value in options.items() if value]
    if len(given) > 1:
        raise BadValue(f"`{given[0]}` and `{given[1]}` exclude each other", "Leave one of them out")


class MissingExtra(LocalspecError):
    """A library is not installed; one of localspec's extras installs it."""

    def __init__(self, library: str, extra: str) -> None:
        from localspec.installation import install_command  # reads files: only an error pays for it

        super().__init__(f"`{library}` is not installed", f"Type `{install_command(extra)}`")


class ModelError(LocalspecError):
    """A problem with a model."""


class UnknownModel(ModelError):
    """No catalogue entry, file, folder or repository has the name."""


class BrokenModel(ModelError):
    """A model file is truncated, damaged, or of another format than it claims."""


class UnsupportedModel(ModelError):
    """An architecture, tensor type or tokenizer cannot be read."""


class VocabularyMismatch(ModelError):
    """The vocabulary of a draft differs from its target's."""


class PromptError(LocalspecError):
    """A problem with a prompt."""


class EmptyPrompt(PromptError):
    """The prompt is empty."""

    def __init__(self) -> None:
        super().__init__("The prompt is empty", 'Type something to answer: localspec chat MODEL "..."')


class ContextFull(PromptError):
    """A prompt has more tokens than the model's context holds."""

    def __init__(self, tokens: int, context: int) -> None:
        super().__init__(
            f"The text has {tokens} tokens and the model's context holds {context}",
            "Shorten the prompt, or choose a model with a longer context",
        )
        self.tokens = tokens
        self.context = context


class PromptTooLong(PromptError):
    """A prompt has more tokens than the model was compiled for."""

    def __init__(self, tokens: int, max_tokens: int, hint: str) -> None:
        super().__init__(f"The prompt has {tokens} tokens and the model was compiled for {max_tokens}", hint)
        self.tokens = tokens
        self.max_tokens = max_tokens


class DeviceError(LocalspecError):
    """A problem with a device."""


class UnknownDevice(DeviceError):
    """No device has the name."""

    def __init__(self, device: str, available: Iterable[str]) -> None:
        names = ", ".join(f"`{name}`" for name in available)
        super().__init__(f"Unknown device `{device}`", f"Available devices: {names or 'none'}")


class TooLittleMemory(DeviceError):
    """A model does not fit in the free memory."""

    def __init__(self, what: str, needed: int, free: int) -> None:
        super().__init__(
            f"`{what}` needs about {needed / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are free",
            "Close other programs, or choose a smaller model",
        )
        self.needed = needed
        self.free = free


class DriverFailed(DeviceError):
    """A driver or a compiler failed or crashed."""


class NetworkError(LocalspecError):
    """A download failed."""


class ChildFailed(LocalspecError):
    """A process that localspec started could not start, or died; `code` is its exit code if it did."""

    def __init__(self, message: str, hint: str | None = None, *, code: int | None = None) -> None:
        super().__init__(message, hint)
        self.code = code


class DigestMismatch(LocalspecError):
    """A downloaded file has the wrong checksum."""


class StorageError(LocalspecError):
    """The disk is full, or a file or folder cannot be written."""


def rebuilt(kind: str, message: str, hint: str | None) -> LocalspecError:
    """Return an error that another process has described, of the class named `kind`."""
    found = globals().get(kind)
    if not (isinstance(found, type) and issubclass(found, LocalspecError)):
        found = LocalspecError
    return _restored(found, message, hint)


def _restored(kind: type[LocalspecError], message: str, hint: str | None) -> LocalspecError:
    error = kind.__new__(kind)
    LocalspecError.__init__(error, message, hint)
    return error


def printable(text: str, length: int = 80) -> str:
    """Return a text from outside as a message can show it: short, and without control characters."""
    escaped = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text[:length])
    return escaped if len(text) <= length else f"{escaped}…"


def suggestion(wrong: str, valid: Iterable[str]) -> str:
    """Return a hint with the valid names nearest to `wrong`, or with all of them."""
    names = list(valid)
    near = difflib.get_close_matches(wrong, names, n=3, cutoff=0.5)
    if near:
        return "Did you mean " + " or ".join(f"`{name}`" for name in near) + "?"
    if not names:
        return "It takes none"
    return "Choose from " + ", ".join(f"`{name}`" for name in names)


def nearest(wrong: str, valid: Iterable[str], shown_by: str) -> str:
    """Return a hint with the five valid names nearest to `wrong`; the command `shown_by` lists them all."""
    lower = wrong.lower()
    scores = {name: difflib.SequenceMatcher(None, name, lower).ratio() for name in valid}
    if not scores:
        return f"See `{shown_by}`"
    parts = {name for name in scores if lower and lower in name}
    best = sorted(scores, key=lambda name: (name not in parts, -scores[name]))[:NEAREST]
    quoted = [f"`{name}`" for name in best]
    listed = " or ".join(filter(None, [", ".join(quoted[:-1]), quoted[-1]]))
    close = best[0] in parts or scores[best[0]] >= 0.5
    start = (
        f"Did you mean {listed}?" if close else f"The nearest names are {listed.replace(' or ', ' and ')};"
    )
    return f"{start} `{shown_by}` shows them all"
