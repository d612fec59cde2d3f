from __future__ import annotations

import pytest

from localspec.errors import BadValue
from localspec.speech.languages import LANGUAGES, OTHER_NAMES, code_of, name_of


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("auto", None),
        ("de", "de"),
        ("DE", "de"),
        ("German", "de"),
        ("en-US", "en"),
        ("pt_BR", "pt"),
        ("haitian creole", "ht"),
        ("Flemish", "nl"),
        (" mandarin ", "zh"),
        ("yue", "yue"),
    ],
)
def test_languages_by_code_and_name(text: str, code: str | None) -> None:
    assert code_of(text) == code


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("duch", "Did you mean `Dutch`"),
        ("germn", "`German`"),
        ("xx", "a code such as `nl`; `auto` detects it"),
        ("", "such as `Dutch`"),
    ],
)
def test_an_unknown_language_suggests_names(text: str, hint: str) -> None:
    with pytest.raises(BadValue, match=f"Unknown language `{text}`") as caught:
        code_of(text)
    assert hint in str(caught.value.hint)


def test_there_are_a_hundred() -> None:
    assert len(LANGUAGES) == 100
    assert set(OTHER_NAMES.values()) <= set(LANGUAGES)
    assert (name_of("nl"), name_of("tlh")) == ("Dutch", "tlh")


@pytest.mark.engines
def test_they_are_those_of_transformers() -> None:
    from transformers.models.whisper import tokenization_whisper as theirs

    assert {code: name.lower() for code, name in LANGUAGES.items()} == theirs.LANGUAGES
    assert list(LANGUAGES) == list(theirs.LANGUAGES)
