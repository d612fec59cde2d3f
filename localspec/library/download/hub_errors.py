"""Translate the errors of the hub, its HTTP client and the disk into messages with a hint."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from localspec.errors import LocalspecError, NetworkError, UnknownModel, printable
from localspec.library import storage
from localspec.library.download import cache
from localspec.library.download.retry import causes, is_network, status_of
from localspec.library.sources import Source

LOCAL_FILE = "or give a model file you have: `localspec chat path/to/model.gguf`"
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
PROXIES = ("http", "https", "socks5", "socks5h")
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
    if fault := _fault_of_settings(error):
        return NetworkError(f"Cannot connect to `{cache.host()}`: {fault}", "Correct it, or unset it")
    if is_network(error):
        return NetworkError(
            f"Cannot connect to `{cache.host()}`{_through()}: {_reason(error)}",
            f"Check the connection, {LOCAL_FILE}",
        )
    if isinstance(error, OSError):
        return storage.as_storage_error(error, cache.folder())
    return None


def _fault_of_settings(error: Exception) -> str:
    """Return which variable of the environment keeps the hub from being reached, "" if none is seen to."""
    for name in CERTIFICATES:
        value = os.environ.get(name) or os.devnull
        if not Path(value).exists() or (name == "SSL_CERT_FILE" and Path(value).is_dir()):
            return f"`{name}` names `{printable(value)}`, which is no file"
    name, value = _proxy()
    if value:
        try:
            parts = urlsplit(value if "://" in value else f"http://{value}")
            usable = parts.scheme in PROXIES and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            return f"`{name}` is no address of a proxy that can be used: {', '.join(PROXIES)}"
    token = os.environ.get("HF_TOKEN") or ""
    if isinstance(error, UnicodeError) or not token.strip().isprintable():
        return "`HF_TOKEN` holds characters that no token has"
    return ""


def _proxy() -> tuple[str, str]:
    """Return the variable that names the hub's proxy, and its value; "" and "" without one."""
    from urllib.request import proxy_bypass  # slow to import

    parts = urlsplit(cache.endpoint())
    if proxy_bypass(parts.hostname or ""):
        return "", ""
    for wanted in (f"{parts.scheme}_proxy", "all_proxy"):
        for name, value in os.environ.items():
            if name.lower() == wanted and value:
                return name, value
    return "", ""


def _through() -> str:
    """Return the proxy for a message, without the password that it may have."""
    name, value = _proxy()
    return f" through the proxy `{printable(value.rpartition('@')[2])}` of `{name}`" if value else ""


def _reason(error: Exception) -> str:
    """Return why a connection failed, in the words of the innermost error that says it."""
    found = list(causes(error))
    for each in found:
        if isinstance(each, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted ({each.verify_message.rstrip('.')})"
        if isinstance(each, socket.gaierror):
            return "its name is not known"
    innermost = found[-1]
    told = getattr(innermost, "strerror", None) or str(innermost) or type(innermost).__name__
    return printable(str(told), 200)


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
