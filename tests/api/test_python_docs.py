"""The Python in README.md and docs/python.md runs, on the real SmolLM2."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import localspec
import models
from localspec.api import Model
from localspec.errors import BadValue, PromptError, UnknownName
from localspec.library import Library, Silent

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A data folder with SmolLM2 under its name in the catalogue."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALSPEC_HOME", str(folder))
        assert Library().resolve(str(models.smollm2_gguf()), Silent()).name == models.SMALL
        yield


@pytest.fixture(scope="module")
def model(home: None) -> Iterator[Model]:
    with localspec.load(models.SMALL, threads=2) as loaded:
        yield loaded


def blocks(file: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / file).read_text("utf-8"), re.S | re.M)


def test_the_readme_s_example_is_short_and_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks("README.md")
    assert len(example.strip().splitlines()) <= 7
    exec(example, {})
    assert len(capsys.readouterr().out) > 10


def test_docs_python_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for example in blocks("docs/python.md"):
        exec(example, names)
    out = capsys.readouterr().out
    assert "Unknown model `no-such-model`" in out
    assert '"city"' in out


def test_public_names_are_sorted_documented_and_there() -> None:
    assert localspec.__all__ == sorted(localspec.__all__)
    for name in localspec.__all__:
        assert getattr(localspec, name).__doc__
    assert set(localspec.__all__) <= set(dir(localspec))
    with pytest.raises(AttributeError, match="no attribute `nothing`"):
        _ = localspec.nothing


def test_a_stream_is_the_answer_and_may_be_left(model: Model) -> None:
    whole = model.generate("Count to ten.", max_new_tokens=24, temperature=0)
    assert (whole.finish_reason, len(whole.token_ids)) == ("length", 24)
    stream = model.stream("Count to ten.", max_new_tokens=24, temperature=0)
    assert "".join(stream) == whole.text == stream.answer.text
    left = model.stream("Count to ten.", max_new_tokens=24, temperature=0)
    first = next(iter(left))
    left.close()
    assert left.answer.finish_reason == "interrupted"
    assert whole.text.startswith(left.answer.text)
    assert first


def test_messages_and_a_prompt_ask_the_same(model: Model) -> None:
    options = {"max_new_tokens": 8, "temperature": 0.0}
    message = {"role": "user", "content": "Say hi."}
    assert (
        model.generate([message], **options).token_ids  # type: ignore[arg-type]
        == model.generate("Say hi.", **options).token_ids  # type: ignore[arg-type]
    )


def test_wrong_options_and_a_closed_model_are_told() -> None:
    with localspec.load(models.SMALL, draft="off") as loaded:
        with pytest.raises(BadValue, match="`top-p` is 2"):
            loaded.generate("Hi", top_p=2.0, temperature=1.0)
        with pytest.raises(BadValue, match="is not a grammar"):
            loaded.generate("Hi", grammar="no rule")
        answer = loaded.generate("Hi", max_new_tokens=4)
        assert answer.off_reason == "it was switched off"
    with pytest.raises(PromptError, match="closed"):
        loaded.generate("Hi")
    with pytest.raises(UnknownName, match="no option called `tokns`"):
        localspec.load(models.SMALL, draft_length="fixed:tokns=3")
