"""SmolLM2 in a library of the session's own, engines on it, and the texts they read."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import models
from localspec.engines.openvino.engine import OpenVino
from localspec.library import Library, Silent, StoredModel

CODE = '''\
def shared_prefix(left, right):
    """Return how many tokens two texts share at their start, by halving."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low


class Shelf:
    """Keeps books by their titles, and says which are lent."""

    def __init__(self):
        self.books = {}
        self.lent = set()

    def add(self, title, author):
        self.books[title] = author

    def lend(self, title):
        if title in self.lent:
            raise ValueError(f"{title} is lent already")
        self.lent.add(title)
        return self.books[title]
'''
EDIT = (
    "<|im_start|>user\nRepeat this function word for word.\n\n"
    + CODE[: CODE.index("class")]
    + "<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    home = tmp_path_factory.mktemp("home")
    yield Library(home)
    shutil.rmtree(home)


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    return models.smollm2_gguf()


@pytest.fixture(scope="session")
def smollm2(library: Library, smollm2_gguf: Path) -> StoredModel:
    return library.resolve(str(smollm2_gguf), Silent())


Make = Callable[..., OpenVino]


@pytest.fixture(scope="session")
def engine(smollm2: StoredModel) -> Make:
    """Return SmolLM2 with engine options; one compiled model for each choice of them."""

    @cache
    def make(**options: object) -> OpenVino:
        return OpenVino(smollm2.folder, threads=2, **options)  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def text(smollm2: StoredModel) -> list[int]:
    """The tokens of a fixed text of Python code."""
    ids: list[int] = smollm2.tokenizer().encode(CODE, add_special_tokens=False).ids
    return ids


@pytest.fixture(scope="session")
def prompt(smollm2: StoredModel) -> list[int]:
    """A prompt whose answer repeats it, so that guesses stand."""
    ids: list[int] = smollm2.tokenizer().encode(EDIT, add_special_tokens=False).ids
    return ids
