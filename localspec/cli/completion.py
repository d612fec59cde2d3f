"""Completion in a shell: names of models, drafts, conversations, recipes, suites, parts and settings.

Each function reads only the names, without opening the library, and a damaged file completes to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from localspec.errors import LocalspecError


def installed(incomplete: str) -> list[str]:
    """Complete the name of a model of the library."""
    return starting(incomplete, _installed)


def models(incomplete: str) -> list[str | tuple[str, str]]:
    """Complete the name of a model of the library, or of one of the catalogue that a command runs."""
    return starting(incomplete, _models)


def every_model(incomplete: str) -> list[str | tuple[str, str]]:
    """Complete the name of a model of any kind, of the library or of the catalogue."""
    return starting(incomplete, lambda: _models(None))


def speech_models(incomplete: str) -> list[str | tuple[str, str]]:
    """Complete the name of a model of speech, of the library or of the catalogue."""
    return starting(incomplete, lambda: _models("speech"))


def speech_drafts(incomplete: str) -> list[str | tuple[str, str]]:
    """Complete `auto`, `off`, `copies`, `self`, or a model of speech."""
    return starting(incomplete, lambda: ("auto", "off", "copies", "self", *_models("speech")))


def drafts(incomplete: str) -> list[str | tuple[str, str]]:
    """Complete `auto`, `off`, a drafter or a model."""
    return starting(incomplete, lambda: ("auto", "off", *_parts("drafters"), *_models()))


def policies(incomplete: str) -> list[str]:
    """Complete the name of a draft-length policy."""
    return starting(incomplete, lambda: _parts("draft_length"))


def engines(incomplete: str) -> list[str]:
    """Complete `auto` or the name of an engine."""
    return starting(incomplete, lambda: ("auto", *_parts("engines")))


def kinds(incomplete: str) -> list[str]:
    """Complete the name of a kind of parts."""
    from localspec import plugins

    return starting(incomplete, lambda: tuple(plugins.KINDS))


def samplers(incomplete: str) -> list[str]:
    """Complete the name of a sampler."""
    return starting(incomplete, lambda: _parts("samplers"))


def verifiers(incomplete: str) -> list[str]:
    """Complete the name of a verifier."""
    return starting(incomplete, lambda: _parts("verifiers"))


def sessions(incomplete: str) -> list[tuple[str, str]]:
    """Complete the name of a saved conversation, the latest first."""

    def names() -> Iterator[tuple[str, str]]:
        from localspec.library import home
        from localspec.state.conversations import Sessions

        for kept in Sessions(home() / "sessions.db").all():
            yield kept.name, kept.model

    return starting(incomplete, names)


def recipes(incomplete: str) -> list[str]:
    """Complete the name of a shipped recipe."""

    def names() -> list[str]:
        from localspec.build import recipes

        return recipes.names()

    return starting(incomplete, names)


def suites(incomplete: str) -> list[str]:
    """Complete the name of a shipped prompt suite."""

    def names() -> list[str]:
        from localspec.bench import suites

        return suites.names()

    return starting(incomplete, names)


def starting(incomplete: str, names: Callable[[], Iterable[Any]]) -> list[Any]:
    """Return the names that begin with `incomplete`, none if they cannot be read."""
    try:
        found = list(names())
    except (LocalspecError, OSError):
        return []
    return [name for name in found if (name if isinstance(name, str) else name[0]).startswith(incomplete)]


def _installed() -> Iterator[str]:
    from localspec.library import home

    folder = home() / "models"
    if folder.is_dir():
        yield from sorted(path.name for path in folder.glob("[!.]*") if path.is_dir())


def _models(kind: str | None = "text") -> Iterator[str | tuple[str, str]]:
    """Yield the models of a kind, None for all; one that the catalogue does not know may be of any."""
    from localspec.library import catalogue

    here = list(_installed())
    known = {entry.name: entry.kind for entry in catalogue.entries()}
    yield from (name for name in here if kind is None or known.get(name, kind) == kind)
    for entry in catalogue.entries():
        if kind in (None, entry.kind) and entry.name not in here:
            yield entry.name, entry.title


def _parts(kind: str) -> tuple[str, ...]:
    from localspec import plugins

    return plugins.names(kind)
