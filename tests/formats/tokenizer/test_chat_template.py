from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import ModelError
from localspec.formats.tokenizer.chat_template import ChatTemplate

# Templates of real models, conversations, and the text that transformers 4.57 makes of them.
REAL = json.loads((Path(__file__).parents[2] / "data" / "templates.json").read_text("utf-8"))

USER = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("case", REAL["cases"], ids=lambda case: case["name"])
def test_real_templates_render_as_transformers_renders_them(case: dict[str, Any]) -> None:
    special = case["special"]
    source = REAL["templates"][case["template"]]
    template = ChatTemplate(source, bos=special["bos_token"], eos=special["eos_token"])
    found = template.render(case["messages"], case.get("tools"), case.get("add", True))
    assert found == case["text"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "hi"}'),
        ("{{ {'é': '<b>&'} | tojson }}", '{"é": "<b>&"}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "13"),
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "1"),
        ("a{% generation %}{{ messages[0].content }}{% endgeneration %}b", "ahib"),
        ("  {% if true %}\nx\n  {% endif %}\n", "x\n"),
        ("{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ sep_token }}", "<s>||<p>|"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }}", "True True True"),
        ("{% set n = namespace(x=0) %}{% set n.x = 3 %}{{ n.x }}", "3"),
        ("{{ enable_thinking }}", "False"),
    ],
)
def test_features_that_templates_use(source: str, expected: str) -> None:
    template = ChatTemplate(source, bos="<s>", eos="", special={"pad_token": "<p>"})
    assert template.render(USER, enable_thinking=False) == expected


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "failed: roles must alternate"),
        ("{% if %}", "failed: Expected an expression"),
        ("{{ messages[0].content.nothing.more }}", "failed: .*nothing"),
        ("{{ 1 + 'a' }}", "failed: unsupported operand"),
        ("{{ messages.append(1) }}", "failed: .*append"),
        ("{{ ''.__class__.__mro__ }}", "failed: .*unsafe"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "failed: maximum recursion"),
    ],
)
def test_a_template_that_fails_says_why(source: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        ChatTemplate(source).render(USER)


def test_a_message_without_content_is_empty() -> None:
    messages: list[dict[str, Any]] = [{"role": "assistant", "content": None}, {"role": "assistant"}]
    template = ChatTemplate("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    assert template.render(messages) == "[][]"
    assert messages == [{"role": "assistant", "content": None}, {"role": "assistant"}]


def test_tools_may_have_their_own_template() -> None:
    template = ChatTemplate("plain", with_tools="{{ tools | length }} tools")
    assert template.render(USER) == "plain"
    assert template.render(USER, tools=[{}, {}]) == "2 tools"
    assert template.render(USER, tools=[]) == "plain"
