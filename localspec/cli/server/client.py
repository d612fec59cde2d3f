"""Asks a server that runs, for the commands beside `serve`."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from localspec.errors import LocalspecError, NetworkError, UnknownModel, nearest, printable

PORT = 11435
SECONDS = 30.0  # that a server has to answer
Host = Annotated[str, typer.Option(help="Address of the server.", metavar="ADDRESS")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="Port of the server.", metavar="N")]
ApiKey = Annotated[
    str | None, typer.Option(help="Key that the server asks for.", metavar="KEY", show_default="none")
]


class NoServer(NetworkError):
    """Nobody listens at the address of a server."""


def address_of(host: str, port: int) -> str:
    """Return the address of a server as a URL."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@dataclass(frozen=True, slots=True)
class Server:
    """A server that may run at an address."""

    host: str
    port: int
    key: str | None

    @property
    def address(self) -> str:
        """Its address as a URL."""
        return address_of(self.host, self.port)

    def ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Return the JSON object that answers a request.

        Raises NoServer, NetworkError for a program that is no such server, and LocalspecError with the words
        of a refusal.
        """
        status, text = self._answer(method, path, body)
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise NetworkError(f"`{self.address}` is another program than localspec", "Choose its `--port`")
        if status == 401:
            raise LocalspecError(f"`{self.address}` asks for another API key", "Add `--api-key KEY`")
        if status >= 400:
            told = found.get("error")
            said = told.get("message") if isinstance(told, dict) else told
            raise LocalspecError(f"`{self.address}` refuses: {printable(str(said), 300).rstrip('.')}", None)
        return found

    def _answer(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        import http.client  # slow to import

        headers = {"content-type": "application/json"}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        connection = http.client.HTTPConnection(self.host, self.port, timeout=SECONDS)
        try:
            with closing(connection):
                connection.request(method, path, None if body is None else json.dumps(body), headers)
                response = connection.getresponse()
                return response.status, response.read()
        except ConnectionError:
            message = f"No server answers at `{self.address}`"
            raise NoServer(message, "Start one with `localspec serve MODEL`, or name its `--port`") from None
        except (OSError, http.client.HTTPException) as error:
            message = f"`{self.address}` does not answer: {error or type(error).__name__}"
            raise NetworkError(message, "Check `--host` and `--port`") from None

    def loaded(self) -> list[dict[str, Any]]:
        """Return the loaded models; raises what `ask` raises."""
        found: list[dict[str, Any]] = self.ask("GET", "/api/ps").get("models", [])
        return found

    def check(self, model: str) -> None:
        """Raise UnknownModel for a model that the server does not have, and what `ask` raises."""
        names = [str(each["id"]) for each in self.ask("GET", "/v1/models").get("data", [])]
        if model not in names:
            message = f"`{self.address}` has no model `{printable(model)}`"
            raise UnknownModel(message, nearest(model, names, "localspec list"))
