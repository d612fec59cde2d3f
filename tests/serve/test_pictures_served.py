"""Pictures in requests, as OpenAI's and Ollama's clients send them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import MODEL, Localspec
from ollama import Client, ResponseError
from openai import BadRequestError, OpenAI
from random_models import tiny_vision
from random_models.tiny_vision import encoded
from serving import Server

from localspec.library import Library, Silent
from localspec.library.importing.add_local import add_local

SEEING, ASKED, TOKENS = "tiny-llava", "w5 w6 w7", 8
GREEDY: dict[str, Any] = {"temperature": 0, "num_predict": TOKENS}


@pytest.fixture(scope="module")
def seeing(localspec: Localspec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a model of text and one with eyes."""
    path = tiny_vision.llava(tmp_path_factory.mktemp("llava"))
    library = Library(localspec.home)
    add_local(library, path, SEEING, Silent())
    running = Server(localspec, SEEING, "--vision-tokens", "keep=9")
    yield running
    assert running.stop() == 143
    library.remove(SEEING, Silent())  # other tests count the models


@pytest.fixture(scope="module")
def openai(seeing: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{seeing.url}/v1", api_key="none", max_retries=0) as found:
        yield found


@pytest.fixture(scope="module")
def ollama(seeing: Server) -> Iterator[Client]:
    with Client(seeing.url) as found:
        yield found


def asked(url: str) -> list[Any]:
    parts = [{"type": "text", "text": ASKED}, {"type": "image_url", "image_url": {"url": url}}]
    return [{"role": "user", "content": parts}]


def said(client: OpenAI, url: str, model: str = SEEING) -> tuple[str, int]:
    found = client.chat.completions.create(model=model, messages=asked(url), temperature=0, max_tokens=TOKENS)
    assert found.usage
    return str(found.choices[0].message.content), found.usage.prompt_tokens


def test_all_apis_see_the_same(openai: OpenAI, ollama: Client, localspec: Localspec, tmp_path: Path) -> None:
    text, tokens = said(openai, f"data:image/png;base64,{encoded(1)}")
    assert tokens == 1 + 9 + 3 + 1
    chat = ollama.chat(SEEING, [{"role": "user", "content": ASKED, "images": [encoded(1)]}], options=GREEDY)
    one = ollama.generate(SEEING, ASKED, images=[encoded(1)], options=GREEDY)
    assert (chat.message.content, chat.prompt_eval_count) == (text, tokens)
    assert one.response == text
    assert said(openai, f"data:image/png;base64,{encoded(2)}")[0] != text
    assert "vision" in (ollama.show(SEEING).capabilities or [])
    assert "vision" not in (ollama.show(MODEL).capabilities or [])


def test_the_engine_of_the_text_part_alone_serves_pictures(
    localspec: Localspec, seeing: Server, tmp_path: Path
) -> None:
    del seeing  # which added the model
    image = tmp_path / "scene.png"
    image.write_bytes(base64.b64decode(encoded(1)))
    options = ("--image", str(image), "--max-tokens", str(TOKENS), "--temperature", "0", "--json")
    found = localspec.run("chat", SEEING, ASKED, *options).values
    assert found["engine"] == "openvino"
    running = Server(localspec, SEEING)
    with OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        assert said(client, f"data:image/png;base64,{encoded(1)}")[0] == found["text"]
    assert running.stop() == 143


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://example.com/cat.png", "localspec fetches none"),
        ("file:///etc/passwd", "localspec fetches none"),
        ("data:image/png;base64,", "is empty"),
        ("data:application/pdf;base64,JVBERi0xLjQ=", "no data URL of a picture"),
        ("data:image/png;base64,JVBERi0xLjQ=", "is a PDF"),
    ],
)
def test_what_is_no_picture_is_refused_in_words(openai: OpenAI, url: str, message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        said(openai, url)


def test_a_model_of_text_refuses_pictures_and_answers_text(openai: OpenAI, ollama: Client) -> None:
    with pytest.raises(BadRequestError, match="sees no pictures"):
        said(openai, f"data:image/png;base64,{encoded(1)}", MODEL)
    with pytest.raises(ResponseError, match="sees no pictures"):
        ollama.chat(MODEL, [{"role": "user", "content": "Hi", "images": [encoded(1)]}])
    answer = ollama.chat(MODEL, [{"role": "user", "content": "Hi"}], options=GREEDY)
    assert answer.message.content


def test_raw_text_takes_no_pictures(ollama: Client) -> None:
    with pytest.raises(ResponseError, match="`raw` takes no `images`"):
        ollama.generate(SEEING, ASKED, raw=True, images=[encoded(1)])
