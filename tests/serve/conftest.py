"""A server in a process of its own, with SmolLM2."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from command import MODEL, Localspec
from openai import OpenAI
from serving import Server

import models
from localspec.library import Library, Silent


@pytest.fixture(scope="session")
def localspec(tmp_path_factory: pytest.TempPathFactory) -> Localspec:
    """The command with SmolLM2 installed."""
    home = tmp_path_factory.mktemp("serving")
    assert Library(home).resolve(str(models.smollm2_gguf()), Silent()).name == MODEL
    return Localspec(home)


@pytest.fixture(scope="session")
def server(localspec: Localspec) -> Iterator[Server]:
    running = Server(localspec, MODEL)
    yield running
    assert running.stop() == 143


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


@pytest.fixture(scope="session")
def capital(localspec: Localspec) -> int:
    """The token of the word that answers the question about France."""
    model = Library(localspec.home).find(MODEL)
    assert model is not None
    (token,) = model.tokenizer().encode(" Paris").ids
    return int(token)
