from __future__ import annotations

import json
import resource
import time
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import ModelError
from localspec.formats.tokenizer import template_limits
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


def memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


DOUBLING = "{% set n = namespace(x='xxxxx') %}{% for i in range(60) %}{% set n.x = HERE %}{% endfor %}"
ENDLESS = [
    "{% for i in range(10**9) %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
    "{% for i in range(5000) recursive %}{{ loop(range(5000)) }}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f() %}{% for i in range(99999) %}"
    + "x" * 20_000
    + "{% endfor %}{% endmacro %}{{ f() | length }}",
    "{% set y %}{% for i in range(99999) %}{{ 'x' * 20000 }}{% endfor %}{% endset %}{{ y | length }}",
    "{{ range(99999) | map('center', 99999) | list | length }}",
    "{{ 'x' * 10**10 }}",
    "{{ 10**10 * 'x' }}",
    "{{ [1] * 10**10 }}",
    "{{ 10 ** (10 ** 9) }}",
    "{{ 2 ** 99999 > 1 }}",
    "{% set n = namespace(x=9) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}{{ n.x > 1 }}",
    "{{ 'x' | center(10**10) }}",
    "{{ 'x'.center(10**10) }}",
    "{{ 'x'.ljust(10**10) | length }}",
    "{{ '1'.zfill(10**10) | length }}",
    "{{ '\t'.expandtabs(10**10) | length }}",
    "{{ ('a\n' * 9999) | indent(10**6) | length }}",
    "{{ ('a' * 99999).replace('a', 'b' * 99999) | length }}",
    "{{ ('a' * 99999) | replace('a', 'b' * 99999) | length }}",
    "{{ ('b' * 99999).join(['a'] * 99999) | length }}",
    "{{ (['a'] * 99999) | join('b' * 99999) | length }}",
    "{{ (['b' * 99999] * 99999) | join | length }}",
    "{{ '%10000000000d' % 1 }}",
    "{{ '%*d' % (10**10, 1) }}",
    "{{ '%10000000000d' | format(1) }}",
    "{{ '{:10000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 10**10) }}",
    "{{ '{a:>10000000000}'.format_map({'a': 1}) }}",
    "{{ ([[1] * 9999] * 9999) | tojson | length }}",
    "{{ ([['x' * 9999] * 9999] * 9999) | string | length }}",
    "{{ [['x' * 9999] * 9999] * 9999 }}",
    "{{ '%s' % (['x' * 9999] * 99999,) }}",
    "{{ ['x' * 9999] * 99999 ~ '' }}",
    "{{ [1] | batch(10**10, 0) | list | length }}",
    "{{ lipsum(n=10**6) }}",
    *(
        DOUBLING.replace("HERE", expression)
        for expression in (
            *("n.x ~ n.x", "n.x + n.x", "[n.x, n.x]", "(n.x, n.x)", "{'a': n.x, 'b': n.x}", "n.x * 2"),
            *("n.x | replace('x', 'xx')", "'%s%s' % (n.x, n.x)", "[n.x, n.x] | join", "'{0}{0}'.format(n.x)"),
        )
    ),
    "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "{{ " + "[" * 3000 + "]" * 3000 + " }}",
    "{{ " + "-" * 30_000 + "1 }}",
    "{{ 1" + " + 1" * 30_000 + " }}",
    "{% if true %}" * 3000 + "{% endif %}" * 3000,
    "x" * 600_000,
]


@pytest.mark.parametrize("source", ENDLESS, ids=lambda source: source[:60])
def test_a_template_without_an_end_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "SECONDS", 1.0)
    before, started = memory(), time.thread_time()
    with pytest.raises(ModelError, match="chat template"):
        ChatTemplate(source).render(USER)
    assert time.thread_time() - started < 4
    assert memory() - before < 400_000  # kilobytes


def test_a_long_conversation_is_rendered() -> None:
    """The limits grow with the text, and not with the machine's load: processor time counts."""
    text = "word " * 100_000
    turns = [{"role": role, "content": text} for _ in range(20) for role in ("user", "assistant")]
    for source in REAL["templates"].values():
        rendered = ChatTemplate(source).render(turns, [{"type": "function", "function": {"name": "f"}}])
        assert rendered.count("word") == 4_000_000


def test_a_template_cannot_raise_its_own_limit() -> None:
    for name in ("limits: spend", "limits"):
        with pytest.raises(ModelError):
            ChatTemplate("{{ -1000000000 | " + name + " }}").render(USER)


TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
REFUSING = "{% if messages[0].role == 'system' %}{{ raise_exception('No system role') }}{% endif %}" + TURNS
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
LEAVING_OUT = "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endfor %}"


@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "f"}}]])
@pytest.mark.parametrize("source", [REFUSING, ALTERNATING, LEAVING_OUT])
def test_a_template_without_a_system_role_has_the_instructions_in_the_first_user_turn(
    source: str, tools: Any
) -> None:
    template = ChatTemplate(source)
    system = [{"role": "system", "content": "Be brief."}]
    rest = [{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]
    assert template.render([*system, *USER, *rest], tools) == "[user]Be brief.\n\nhi[assistant]x[user]y"
    assert template.render([*USER, *rest], tools) == "[user]hi[assistant]x[user]y"
    assert template.render(system, tools) == "[user]Be brief."


def test_a_template_with_a_system_role_keeps_it() -> None:
    messages = [{"role": "system", "content": "Be brief."}, *USER]
    assert ChatTemplate(TURNS).render(messages) == "[system]Be brief.[user]hi"
    no_tools = "{% if tools %}{{ raise_exception('No tools') }}{% endif %}" + TURNS
    assert ChatTemplate(no_tools).render(messages) == "[system]Be brief.[user]hi"
    with pytest.raises(ModelError, match="No tools"):
        ChatTemplate(no_tools).render(messages, [{"name": "f"}])
