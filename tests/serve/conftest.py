"""A server in a process of its own, with SmolLM2."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from command import MODEL, Localspec
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
