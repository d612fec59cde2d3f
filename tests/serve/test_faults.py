"""Statuses of errors that no small model causes."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from localspec.errors import TooLittleMemory
from localspec.library import Library
from localspec.runtime.generation import Runtime
from localspec.serve import app
from localspec.serve.pool import Pool

ASKED = {"model": "huge", "messages": [{"role": "user", "content": "Hi"}]}


def too_large(name: str) -> Runtime:
    raise TooLittleMemory(name, 10**12, 10**9)


@pytest.mark.parametrize(
    ("api", "path"),
    [("openai", "/v1/chat/completions"), ("anthropic", "/v1/messages"), ("ollama", "/api/chat")],
)
def test_a_model_that_does_not_fit_may_be_asked_for_later(
    monkeypatch: pytest.MonkeyPatch, api: str, path: str
) -> None:
    monkeypatch.setattr(f"localspec.serve.{api}.routes.known", lambda pool, library, name: name)
    made = app.create(Pool(too_large), Library(), hosts=None)
    with TestClient(made) as client:
        told = client.post(path, json=ASKED | ({"max_tokens": 1} if api == "anthropic" else {}))
    assert told.status_code == 503
    assert "1000.0 GB" in told.text
