"""What the hub, its HTTP library and the disk raise, as errors of ours that say what to do."""

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
def explained(source: Source, needed: int = 0) -> Iterator[None]:
    """Turn what goes wrong while `source` is asked for, or `needed` bytes of it written, into our errors."""
    try:
        with cache.writing(needed):
            yield
    except LocalspecError:
        raise
    except Exception as error:
        found = _explanation(error, source)
        if found is None:
            raise
        raise found from error


def not_cached(source: Source) -> NetworkError:
    """Say that nothing may be fetched and where was looked."""
    return NetworkError(
        f"`{source.name}` is not in the cache `{cache.folder()}`, and the hub is switched off", ONLINE
    )


def _explanation(error: Exception, source: Source) -> LocalspecError | None:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return _gated(source)
    if isinstance(error, errors.RevisionNotFoundError):
        return UnknownModel(f"`{source.name}` has no revision `{source.version}`", "Leave it out")
    if isinstance(error, errors.RepositoryNotFoundError):
        return _no_repository(source)
    status = status_of(error)
    if status in (401, 403):
        return _no_access(source, status)
    if status is not None:
        return NetworkError(
            f"`{cache.host()}` answered {status} for `{source.name}`", f"Try again, {LOCAL_FILE}"
        )
    if is_network(error):
        return NetworkError(f"`{cache.host()}` cannot be reached", f"Check the connection, {LOCAL_FILE}")
    if isinstance(error, OSError):
        return storage.storage_error(error, cache.folder())
    return None


def _no_repository(source: Source) -> UnknownModel:
    missing = f"There is no repository `{source.name}` at `{cache.host()}`, or it is private"
    if token := _token_source():
        return UnknownModel(
            f"{missing} and the token of {token} may not see it", "Check the spelling and the account"
        )
    return UnknownModel(missing, "Check the spelling; for a private one type `hf auth login` first")


def _gated(source: Source) -> NetworkError:
    page = f"{cache.endpoint()}/{source.name}"
    token = _token_source()
    if token is None:
        return NetworkError(
            f"`{source.name}` is gated, and there is no token to ask for it with",
            f"Accept its terms at {page}, then type `hf auth login`",
        )
    return NetworkError(
        f"`{source.name}` is gated, and the token of {token} has no access to it",
        f"Accept its terms at {page} with the account of that token",
    )


def _no_access(source: Source, status: int) -> NetworkError:
    """Say that a repository that is not gated is refused all the same."""
    token = _token_source()
    if token is None:
        return NetworkError(
            f"`{cache.host()}` gives `{source.name}` to nobody without a token", "Type `hf auth login`"
        )
    if status == 401:
        return NetworkError(
            f"`{cache.host()}` does not know the token of {token}",
            f"Make another at {cache.endpoint()}/settings/tokens, or leave it out",
        )
    return NetworkError(
        f"The token of {token} may not read `{source.name}`",
        f"Let it read that repository at {cache.endpoint()}/settings/tokens",
    )


def _token_source() -> str | None:
    """Say where the token that was used came from; `HF_TOKEN` goes before a login."""
    from huggingface_hub import get_token

    if get_token() is None:
        return None
    return "`HF_TOKEN`" if os.environ.get("HF_TOKEN") else "`hf auth login`"
