"""`localspec serve` as a process."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
from contextlib import closing
from typing import Any

from command import MODEL, SECONDS, Localspec
from openai import OpenAI

ASKED: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 40}


def said(client: OpenAI, **options: Any) -> str:
    """Return the text of a chat completion."""
    options = {"messages": ASKED} | GREEDY | options
    return str(client.chat.completions.create(**options).choices[0].message.content)


class Server:
    """`localspec serve` on a free port."""

    def __init__(self, localspec: Localspec, *arguments: str) -> None:
        self.localspec = localspec
        self.said = ""  # on stderr, until it has stopped
        self._process = subprocess.Popen(
            [sys.executable, "-m", "localspec", "serve", "--port", "0", *arguments],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=localspec.environment(),
        )
        assert self._process.stderr is not None
        said = ""
        while not (found := re.search(r"http://[\w.:]+:(\d+)/v1", said)):
            line = self._process.stderr.readline()
            assert line, said
            said += line
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
        """Return the status and the text of a response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(connection):
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"content-type": "application/json"} | named)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def load(self, model: str) -> None:
        """Load a model, as Ollama's clients do."""
        status, told = self.ask("POST", "/api/generate", {"model": model})
        assert (status, json.loads(told)["done_reason"]) == (200, "load")

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def stop(self) -> int:
        """End it as a service manager does, and return the exit code."""
        self._process.send_signal(signal.SIGTERM)
        _, self.said = self._process.communicate(timeout=SECONDS)
        return self._process.returncode
