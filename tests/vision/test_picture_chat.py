"""Conversations about pictures, as users have them: what is answered, drafted, told and refused."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from random_models import tiny_vision
from random_models.tiny_vision import TOKEN, encoded
from said import Said
from typer.testing import CliRunner

from localspec import pictures
from localspec.chat import Chat
from localspec.cli.app import app
from localspec.cli.talk import answering
from localspec.cli.talk.state import Talk
from localspec.core.sampler import Sampling
from localspec.errors import BadValue, LocalspecError, PromptError
from localspec.library import Library, Silent
from localspec.runtime.choice import Choice
from localspec.runtime.generation import Runtime
from localspec.state.conversations import Sessions

ASKED = "w5 w6 w7"


def loaded(library: Library, path: Path, progress: Silent | None = None, **choice: Any) -> Runtime:
    return Runtime.load(str(path), Choice(**choice), library, progress or Silent())


def chat(runtime: Runtime, temperature: float = 0.0, **options: Any) -> Chat:
    return Chat(runtime, sampling=Sampling(temperature=temperature), max_tokens=24, seed=3, **options)


def said_by(path: Path, prompt: list[int], images: list[str]) -> list[int]:
    """Return transformers' greedy answer to a prompt."""
    found = [pictures.of_text(image) for image in images]
    kind, about = (
        ("CLIPImageProcessor", tiny_vision.LLAVA_PIXELS)
        if "llava" in str(path)
        else ("Qwen2VLImageProcessor", tiny_vision.QWEN_PIXELS)
    )
    values = {name: value for name, value in about.items() if name != "image_processor_type"}
    prepared = getattr(transformers, kind)(**values)([each.pixels for each in found], return_tensors="pt")
    model = transformers.AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32).eval()
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        answer = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            **tiny_vision.about_tokens(model, ids),
            **prepared,
            max_new_tokens=24,
            do_sample=False,
            pad_token_id=0,
        )
    return [token for token in answer[0, len(prompt) :].tolist() if token != 1]


@pytest.mark.parametrize("kind", ["llava", "qwen"])
def test_an_answer_is_transformers_own(kind: str, library: Library, request: pytest.FixtureRequest) -> None:
    path, images = request.getfixturevalue(kind), [encoded(1), encoded(2, 20, 33)]
    runtime = loaded(library, path, draft="off", engine="torch:device=cpu")
    talk = chat(runtime)
    answer = talk.send(ASKED, images)
    prompt = talk.prompt(talk.messages[:1])
    assert prompt.count(TOKEN) == sum(map(runtime.tokens_of, images))
    assert answer.token_ids == said_by(path, list(prompt), images)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("llava", {"engine": "openvino"}),
        ("llava", {"engine": "torch:device=cpu"}),
        ("llava", {"vision_tokens": "keep=5"}),
        ("qwen", {}),
        ("qwen", {"vision_tokens": "keep=5"}),
    ],
    ids=["openvino", "torch", "rerouted", "qwen", "qwen rerouted"],
)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_draft_changes_no_token(
    kind: str,
    temperature: float,
    more: dict[str, str],
    library: Library,
    blind: Path,
    request: pytest.FixtureRequest,
) -> None:
    path = request.getfixturevalue(kind)
    texts, drafted = set(), 0
    for draft in ("off", "ngram", "suffix", f"draft_model:name={blind}", f"hybrid:name={blind}"):
        talk = chat(loaded(library, path, draft=draft, draft_length="fixed:tokens=4", **more), temperature)
        for asked in (ASKED, ASKED):
            answer = talk.send(asked, [encoded(1)])
            drafted += answer.stats.drafted
        texts.add(tuple(answer.token_ids))
    assert len(texts) == 1
    assert drafted > 40


def test_a_drafter_sees_the_text_alone(library: Library, llava: Path, blind: Path) -> None:
    runtime = loaded(library, llava, draft=f"draft_model:name={blind}", draft_length="fixed:tokens=3")
    prompt = runtime.encode_chat([{"role": "user", "content": ASKED, "images": [encoded(1)]}])
    shown: list[list[int]] = []
    inner = runtime.drafter.drafter  # type: ignore[attr-defined]
    begin = inner.begin
    inner.begin = lambda tokens: (shown.append(list(tokens)), begin(tokens))[1]
    answer, steps = runtime.answer(prompt, sampling=Sampling(), max_tokens=9)
    list(steps)
    assert answer.stats.drafted
    assert shown == [[token for token in prompt if token != TOKEN]]
    assert TOKEN in prompt


def test_another_picture_is_another_question(library: Library, llava: Path) -> None:
    runtime = loaded(library, llava)
    answers = [chat(runtime).send(ASKED, [encoded(seed)]).token_ids for seed in (1, 2, 1)]
    assert answers[0] == answers[2]
    assert answers[0] != answers[1]


def test_a_conversation_goes_on_from_the_same_text(library: Library, llava: Path) -> None:
    talk = chat(loaded(library, llava))
    talk.send(ASKED, [encoded(1)])
    used = talk.usage()
    assert used.reused >= 10  # the picture, and what is before it
    second = talk.send("w8", [encoded(2)])
    fresh = chat(loaded(library, llava))
    fresh.messages = talk.messages[:-1]
    assert fresh.stream_reply().finish().token_ids == second.token_ids


def test_a_saved_conversation_has_its_pictures(library: Library, llava: Path, tmp_path: Path) -> None:
    talk = chat(loaded(library, llava))
    talk.send(ASKED, [encoded(1)])
    sessions = Sessions(tmp_path / "sessions.db")
    name = sessions.write(sessions.begin("llava"), "llava", talk.messages)
    _, _, messages = sessions.found(name, latest=False)
    again = chat(loaded(library, llava))
    again.messages = messages
    assert again.send("w8").token_ids == talk.send("w8").token_ids


def test_a_picture_in_words_is_text(library: Library, llava: Path) -> None:
    runtime = loaded(library, llava)
    prompt = runtime.encode_chat([{"role": "user", "content": "<image> w5"}])
    assert TOKEN not in prompt
    assert not prompt.pictures


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("", "is empty"),
        (base64.b64encode(b"%PDF-1.4").decode(), "is a PDF"),
        ("https://example.com/cat.png", "localspec fetches none"),
        ("aGVsbG8=", "is no picture"),
    ],
)
def test_nothing_of_a_bad_picture_is_kept(library: Library, llava: Path, image: str, message: str) -> None:
    talk = chat(loaded(library, llava))
    with pytest.raises(PromptError, match=message):
        talk.ask(ASKED, [encoded(1), image])
    assert talk.messages == []
    assert talk.send(ASKED).token_ids


@pytest.mark.parametrize("engine", ["torch:device=cpu", "openvino"])
def test_a_model_without_eyes_refuses_in_words(library: Library, blind: Path, engine: str) -> None:
    talk = chat(loaded(library, blind, engine=engine))
    with pytest.raises(PromptError, match="sees no pictures: it is a model of text"):
        talk.ask(ASKED, [encoded(1)])
    assert talk.messages == []
    with pytest.raises(BadValue, match="`--vision-tokens` does nothing"):
        loaded(library, blind, engine="torch:device=cpu", vision_tokens="keep=5")


def test_raw_text_has_no_place_for_a_picture(library: Library, llava: Path) -> None:
    with pytest.raises(PromptError, match="places for 0 of 1 pictures"):
        chat(loaded(library, llava), raw=True).ask(ASKED, [encoded(1)])


def test_a_wrong_schedule_is_refused_before_the_model_is_found(library: Library) -> None:
    with pytest.raises(BadValue, match="no schedule"):
        Choice(vision_tokens="keep=few").check()


def test_fewer_visual_tokens_are_told(library: Library, llava: Path) -> None:
    said = Said()
    runtime = loaded(library, llava, said, vision_tokens="keep=5")
    assert not runtime.lossless
    assert any("another text than the full model" in line for line in said.lines)
    assert loaded(library, llava).lossless


def picture_file(folder: Path, seed: int = 1) -> Path:
    path = folder / f"scene{seed}.png"
    path.write_bytes(base64.b64decode(encoded(seed)))
    return path


def test_chat_shows_a_picture(library: Library, llava: Path, tmp_path: Path) -> None:
    path = picture_file(tmp_path)
    options = ["--image", str(path), "--max-tokens", "8", "--json", "--draft", "off"]
    plain = CliRunner().invoke(app, ["chat", str(llava), ASKED, *options])
    assert plain.exit_code == 0, plain.output
    assert "40 x 28 pixels, 9 tokens" in plain.stderr
    found = json.loads(plain.stdout)
    wanted = chat(loaded(library, llava, draft="off")).send(ASKED, [encoded(1)])
    assert found["token_ids"] == wanted.token_ids[:8]
    assert "vision_tokens" not in found
    assert found["speculation"]["lossless"]
    fewer = CliRunner().invoke(app, ["chat", str(llava), ASKED, *options, "--vision-tokens", "keep=5"])
    found = json.loads(fewer.stdout)
    assert (found["vision_tokens"], found["speculation"]["lossless"]) == ("keep=5", False)
    line = CliRunner().invoke(
        app, ["chat", str(llava), ASKED, *options[:4], "--vision-tokens", "keep=5", "--stats"]
    )
    assert "vision tokens keep=5: not the full model's text" in line.stderr


def test_a_question_names_its_pictures(
    library: Library, llava: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = picture_file(tmp_path), picture_file(tmp_path, 2)
    (tmp_path / "notes.txt").write_text("w9", encoding="utf-8")
    conversation = chat(loaded(library, llava))
    talk = Talk(conversation, "llava", Choice(), library, Sessions(tmp_path / "sessions.db"), None)
    answering.ask(talk, f"w5 @{first.name} @notes.txt w6")
    asked = conversation.messages[0]
    assert asked["images"] == [encoded(1)]
    assert asked["content"].startswith("notes.txt:")
    edited = f"{asked['content']} @{second.name}"
    answering.ask_instead(talk, edited)
    assert conversation.messages[0]["images"] == [encoded(1), encoded(2)]
    assert conversation.messages[0]["content"] == edited
    assert len(conversation.messages) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.png", b"", "is empty: it has 0 bytes"),
        ("page.pdf", b"%PDF-1.4", "is a PDF"),
        ("notes.txt", b"hello", "is no picture"),
        ("missing.png", None, "No such file"),
    ],
)
def test_chat_refuses_a_bad_picture_before_it_loads_a_model(
    library: Library, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    found = CliRunner().invoke(app, ["chat", "no-such-model", "hi", "--image", str(tmp_path / name)])
    assert found.exit_code != 0
    assert isinstance(found.exception, LocalspecError)
    assert message in found.exception.message
