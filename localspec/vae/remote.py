"""Asks an endpoint for the pictures of latents, or for the latents of a picture; it is not trusted."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

from localspec.errors import BadValue, LocalspecError, NetworkError, printable
from localspec.vae import images, wire
from localspec.vae.tensors import Tensor
from localspec.vae.wire import Asked

TRIES = 4
WAITS = (1.0, 3.0, 10.0)  # seconds before each further try
LONGEST_WAIT = 60.0  # that an endpoint may ask for
AGAIN = (429, 500, 502, 503, 504)
CHUNK = 1 << 16
MAX_LATENTS = 256_000_000  # bytes
Say = Callable[[str], None]


@dataclass(frozen=True)
class Endpoint:
    """An autoencoder at a URL; an answer has `seconds`, and `say` takes a line about each further try."""

    url: str
    key: str | None = None
    seconds: float = 120.0
    say: Say = print
    pause: Callable[[float], None] = field(default=time.sleep, repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise BadValue(
                f"`{printable(self.url)}` is no address of an endpoint",
                "Such as `http://127.0.0.1:11435/vae/decode`",
            )

    def picture(self, latents: Tensor, asked: Asked) -> bytes:
        """Return the file of one picture; raises NetworkError for what is not the picture of the latents."""
        content, _ = self._post(
            latents.data, asked.parameters(latents), asked.accepts, wire.most_bytes(latents)
        )
        wire.check_size(*images.size_of(content, asked.image_format), latents)
        return content

    def pixels(self, latents: Tensor, asked: Asked) -> Tensor:
        """Return pictures as a tensor; raises NetworkError for what is not that of the latents."""
        content, headers = self._post(
            latents.data, asked.parameters(latents), asked.accepts, wire.most_bytes(latents)
        )
        return wire.answer_of(content, headers, latents, asked.processed)

    def latents(self, picture: bytes, asked: Asked) -> Tensor:
        """Return the latents of a PNG file; raises NetworkError for what is no tensor."""
        content, headers = self._post(picture, asked.parameters(None), wire.BINARY, MAX_LATENTS)
        return wire.sent(content, headers)

    def _post(
        self, body: bytes, parameters: list[tuple[str, str]], accepts: str, most: int
    ) -> tuple[bytes, Mapping[str, str]]:
        """Return the body and the headers of an answer; tries again where that may help."""
        for number in range(TRIES):
            last = number == TRIES - 1
            try:
                status, content, headers = self._once(body, parameters, accepts, most)
            except (ConnectionError, TimeoutError) as error:
                problem = f"does not answer: {error or type(error).__name__}"
                if last:
                    raise NetworkError(f"`{self.url}` {problem}", "Check `--endpoint`") from None
                self._wait(number, problem, None)
                continue
            if status < 300:
                return content, headers
            if status not in AGAIN or last:
                kind = NetworkError if status in AGAIN else LocalspecError
                raise kind(f"`{self.url}` refuses ({status}): {_reason(content)}", None)
            self._wait(number, f"answers {status}", headers.get("retry-after"))
        raise AssertionError("tries end in an answer or an error")

    def _once(
        self, body: bytes, parameters: list[tuple[str, str]], accepts: str, most: int
    ) -> tuple[int, bytes, Mapping[str, str]]:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=min(30.0, self.seconds))
        query = "&".join(filter(None, [parts.query, urlencode(parameters)]))
        target = urlunsplit(("", "", parts.path or "/", query, ""))
        headers = {"content-type": wire.BINARY, "accept": accepts}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        end = time.monotonic() + self.seconds
        try:
            connection.request("POST", target, body, headers)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            limit = most if response.status < 300 else CHUNK
            return response.status, self._read(response, limit, end), found
        except (http.client.HTTPException, OSError) as error:
            if isinstance(error, ConnectionError | TimeoutError):
                raise
            raise NetworkError(
                f"`{self.url}` does not answer as a server: {error or type(error).__name__}",
                "Check `--endpoint`",
            ) from None
        finally:
            connection.close()

    def _read(self, response: Any, most: int, end: float) -> bytes:
        """Return the body; raises NetworkError for one that is too long or never ends."""
        parts, size = [], 0
        while part := response.read1(CHUNK):
            size += len(part)
            if size > most:
                raise NetworkError(
                    f"`{self.url}` sends more than the {most:,} bytes that the answer can have",
                    "Check `--endpoint`: it may decode another model",
                )
            if time.monotonic() > end:
                raise NetworkError(f"`{self.url}` still sends after {self.seconds:g} s", "Raise `--timeout`")
            parts.append(part)
        left = response.length
        if left:
            raise ConnectionError(f"the answer ends {left:,} bytes early")
        return b"".join(parts)

    def _wait(self, number: int, problem: str, asked: str | None) -> None:
        seconds = WAITS[number]
        if asked and asked.isascii() and asked.isdigit():
            seconds = min(float(asked), LONGEST_WAIT)
        self.say(f"`{self.url}` {problem}; trying again in {seconds:g} s")
        self.pause(seconds)


def _reason(content: bytes) -> str:
    """Return an endpoint's words of a refusal."""
    text = content.decode("utf-8", "replace")
    try:
        found = json.loads(text)
    except ValueError:
        return printable(text, 300) or "without a reason"
    said = found.get("error", found.get("detail", found)) if isinstance(found, dict) else found
    return printable(str(said.get("message", said) if isinstance(said, dict) else said), 300).rstrip(".")
