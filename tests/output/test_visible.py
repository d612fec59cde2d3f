"""Hidden characters are marked; the text of every script stays as it is."""

from __future__ import annotations

import json
import unicodedata

import pytest

from localspec.output.visible import MARK, escaped, visible

EMOJI = "\N{WOMAN}\u200d\N{PERSONAL COMPUTER} \u2764\ufe0f\u200d\U0001f525 1\ufe0f\u20e3"
PERSIAN = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"


@pytest.mark.parametrize(
    "text", ["a\tb\n", "日本\u3000語", "a\u00a0b", "naïve e\u0301", EMOJI, PERSIAN, "\ue0b0", "\U0001f1eb"]
)
def test_text_of_every_script_stays(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize(
    "code", [*range(32), *range(0x7F, 0xA0), 0xAD, 0x61C, 0xFEFF, 0xD800, 0xE0041, 0x2028]
)
def test_control_characters_are_marked(code: int) -> None:
    kept = chr(code) in "\n\t"
    assert visible(f"a{chr(code)}b") == (f"a{chr(code)}b" if kept else f"a{MARK}b")


def test_all_format_characters_without_a_form_are_marked_in_latin_text() -> None:
    shown = {0x600, 0x601, 0x602, 0x603, 0x604, 0x605, 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
    left = {
        code
        for code in range(0x110000)
        if unicodedata.category(chr(code)) == "Cf" and visible(f"a{chr(code)}b") != f"a{MARK}b"
    }
    assert left - set(range(0x13430, 0x13440)) == shown  # signs of Arabic, Syriac, Kaithi; hieroglyphs


def test_joiners_are_no_way_to_hide_text() -> None:
    assert visible("a\u200db\ufe0f") == f"a{MARK}b{MARK}"
    assert visible("\u200d") == MARK
    assert visible("é\ufe01\ufe02\u200d\u200d") == f"é\ufe01{MARK * 3}"
    assert visible("\u200d", "\N{WOMAN}") == "\u200d"


def test_line_ends() -> None:
    assert visible("a\r\nb\rc\r\n") == f"a\nb{MARK}c\n"


def test_json_stays_the_same_value() -> None:
    values = {"a\x9b\u202e": ["\x1b[2J\u200b", "é", EMOJI, "\ud800", "\u2028"]}
    document = escaped(json.dumps(values, ensure_ascii=False))
    assert json.loads(document) == values
    assert visible(document) == document
    assert "é" in document
