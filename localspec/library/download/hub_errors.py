"""Translate the errors of the hub, its HTTP client and the disk into messages with a hint."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from localspec.errors import LocalspecError, NetworkError, UnknownModel
from localspec.library import storage
from localspec.library.download import cache
from localspec.library.download.retry import is_network, status_of
from localspec.library.sources import Source

LOCAL_FILE = "or give a model file you have: `localspec chat path/to/model.gguf`"
ONLINE = f"Leave out `--offline` and unset `HF_HUB_OFFLINE`, {LOCAL_FILE}"


@contextmanager
def hub_errors(source: Source, needed: int = 0) -> Iterator[None]:
    """Translate errors while `source` is requested, or `needed` bytes of it are written."""
    try:
        with cache.storage_errors(needed):
            yield
    except LocalspecError:
        raise
    except Exception as error:
        translated = _translate(error, source)
        if translated is None:
            raise
        raise translated from error


def not_cached(source: Source) -> NetworkError:
    """Return the error of a model that is not in the cache in offline mode."""
    return NetworkError(f"Offline, and `{source.name}` is not in the cache `{cache.folder()}`", ONLINE)


def _translate(error: Exception, source: Source) -> LocalspecError | None:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return _gated(source)
    if isinstance(error, errors.RevisionNotFoundError):
        return UnknownModel(f"`{source.name}` has no revision `{source.version}`", "Leave it out")
    if isinstance(error, errors.RepositoryNotFoundError):
        return _no_repository(source)
    status = status_of(error)
    if status in (401, 403):
        return _access_denied(source, status)
    if status is not None:
        return NetworkError(
            f"`{cache.host()}` returned status {status} for `{source.name}`", f"Try again, {LOCAL_FILE}"
        )
    if is_network(error):
        return NetworkError(f"Cannot connect to `{cache.host()}`", f"Check the connection, {LOCAL_FILE}")
    if isinstance(error, OSError):
        return storage.as_storage_error(error, cache.folder())
    return None


def _no_repository(source: Source) -> UnknownModel:
    unknown = f"Unknown repository `{source.name}` at `{cache.host()}`"
    if token := _token_source():
        return UnknownModel(
            f"{unknown}, or it is private and the token of {token} has no access to it",
            "Check the spelling and the account",
        )
    return UnknownModel(
        f"{unknown}, or it is private", "Check the spelling; for a private repository type `hf auth login`"
    )


def _gated(source: Source) -> NetworkError:
    page = f"{cache.endpoint()}/{source.name}"
    token = _token_source()
    if token is None:
        return NetworkError(
            f"`{source.name}` is gated and requires an access token",
            f"Accept its terms at {page}, then type `hf auth login`",
        )
    return NetworkError(
        f"`{source.name}` is gated and the token of {token} has no access to it",
        f"Accept its terms at {page} with the account of that token",
    )


def _access_denied(source: Source, status: int) -> NetworkError:
    """Return the error of status 401 or 403 for a repository that is not gated."""
    token = _token_source()
    if token is None:
        return NetworkError(
            f"`{source.name}` at `{cache.host()}` requires an access token", "Type `hf auth login`"
        )
    if status == 401:
        return NetworkError(
            f"`{cache.host()}` rejected the token of {token}",
            f"Create another at {cache.endpoint()}/settings/tokens, or leave it out",
        )
    return NetworkError(
        f"The token of {token} has no permission to read `{source.name}`",
        f"Grant it at {cache.endpoint()}/settings/tokens",
    )


def _token_source() -> str | None:
    """Return where the token comes from, None if there is none; `HF_TOKEN` overrides a login."""
    from huggingface_hub import get_token

    if get_token() is None:
        return None
    return "`HF_TOKEN`" if os.environ.get("HF_TOKEN") else "`hf auth login`"
