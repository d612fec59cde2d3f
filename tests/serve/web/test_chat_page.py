"""The page in a real browser, at the widths of a laptop and of a telephone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import chromium
import pytest
from command import MODEL, Localspec
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright
from serving import Server

WIDE, NARROW = (1280, 800), (420, 860)
COMPLETIONS = "**/v1/chat/completions"
COUNT = "Count from 1 to 500, separated by commas."
MARKDOWN = """# Lists and tuples

A *list* changes, a **tuple** does not, and `len(x)` counts ~~neither~~ both.
See [the docs](https://example.com/docs) or https://example.com/more.

1. first
2. second
   - inner one
   - inner two

> quoted
> text

| name | ordered | changes |
| :--- | :---: | ---: |
| list | yes | yes |
| `a\\|b` | yes | no |

```python
def reverse(words):
    return " ".join(reversed(words.split()))  # a line that is certainly longer than any telephone is wide
```

---

A_snake_case_name and 2 * 3 * 4 stay. """
WORD = "unbreakable" * 30
HOSTILE = (
    "<img src=x onerror=\"document.title='bad'\"> <script>document.title='bad'</script> "
    "[click](javascript:document.title='bad') `<b>` <b>bold</b>\n\n```html\n<script>alert(1)</script>\n```"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    place = chromium.folder()
    with sync_playwright() as playwright:
        program = str(place / "chromium")
        found = playwright.chromium.launch(
            executable_path=program, args=chromium.FLAGS, env=chromium.environment(place)
        )
        yield found
        found.close()


Open = Callable[..., Page]


@pytest.fixture
def visit(browser: Browser, server: Server) -> Iterator[Open]:
    """Open the page; at the end no error may have been written, and no other place asked."""
    contexts, faults, asked = [], [], []

    def visited(size: tuple[int, int] = WIDE, url: str = server.url, **options: Any) -> Page:
        width, height = size
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: said.type in ("error", "warning") and faults.append(said.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: asked.append(urlsplit(request.url)))
        page.goto(url)
        return page

    yield visited
    for context in contexts:
        context.close()
    assert {place.hostname for place in asked} == {"127.0.0.1"}
    assert [text for text in faults if "401" not in text and "400" not in text] == []


def ready(page: Page) -> Page:
    expect(page.locator("#model option").first).to_be_attached()
    return page


def send(page: Page, text: str) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def complete(page: Page, said: str = "The answer is complete") -> None:
    expect(page.locator("#status")).to_have_text(said, timeout=120_000)
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()


def lines(parts: list[tuple[str, str | None]], **stats: Any) -> str:
    """Return the stream of an answer in parts."""
    told = {"tokens": 20, "tokens_per_second": 42.3, "estimated_speedup": 1.84, "drafted": 10, "accepted": 7}
    chunks: list[Any] = [
        {"choices": [{"delta": {"content": text}}], "localspec": {"parts": [[text, source]]}}
        for text, source in parts
    ]
    chunks.append({"choices": [{"delta": {}, "finish_reason": "stop"}], "localspec": told | stats})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def answering(page: Page, *parts: tuple[str, str | None]) -> list[dict[str, Any]]:
    """Let each answer be one of these parts; return the bodies of the requests, which grows."""
    bodies: list[dict[str, Any]] = []

    def answer(route: Route) -> None:
        bodies.append(json.loads(route.request.post_data or "{}"))
        route.fulfill(body=lines(list(parts)), content_type="text/event-stream")

    page.route(COMPLETIONS, answer)
    return bodies


def fits(page: Page) -> bool:
    """Return whether nothing is wider than the window."""
    found = page.evaluate(
        "[document.documentElement, document.querySelector('#scroll'), document.body]"
        ".every((each) => each.scrollWidth <= each.clientWidth)"
    )
    return bool(found)


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_an_answer_streams_with_its_numbers(visit: Open, server: Server, size: tuple[int, int]) -> None:
    page = ready(visit(size))
    expect(page.locator("#model")).to_have_value(MODEL)
    settings(page, temperature="0")
    send(page, "What is the capital of France?")
    complete(page)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    told = json.loads(server.ask("POST", "/v1/chat/completions", body | {"temperature": 0})[1])
    assert page.inner_text(".answer .text").split() == told["choices"][0]["message"]["content"].split()
    expect(page.locator(".answer .numbers")).to_contain_text("tokens/s")
    expect(page.locator("#prompt")).to_have_value("")
    assert page.evaluate("document.activeElement.id") == "prompt"
    assert fits(page)


def test_the_text_grows_while_it_is_written(visit: Open) -> None:
    page = ready(visit())
    send(page, COUNT)
    expect(page.locator(".answer.writing .text")).to_contain_text("3")
    expect(page.locator(".answer.writing .numbers")).to_contain_text("tokens/s")
    page.keyboard.press("Escape")
    complete(page, "Stopped")


def test_markdown_becomes_elements(visit: Open) -> None:
    page = ready(visit())
    answering(page, (MARKDOWN, None))
    send(page, "Compare them")
    complete(page)
    text = page.locator(".answer .text")
    assert text.locator("h2").inner_text() == "Lists and tuples"
    assert [text.locator(tag).inner_text() for tag in ("em", "strong", "p code", "s")] == [
        *("list", "tuple", "len(x)", "neither")
    ]
    assert text.locator("ol > li").count() == 2
    assert text.locator("ol ul > li").all_inner_texts() == ["inner one", "inner two"]
    assert text.locator("blockquote").inner_text() == "quoted\ntext"
    assert text.locator("th").all_inner_texts() == ["name", "ordered", "changes"]
    assert text.locator("td").all_inner_texts() == ["list", "yes", "yes", "a|b", "yes", "no"]
    assert text.locator("td.end").count() == 2
    assert text.locator(".code-head span").inner_text() == "python"
    assert text.locator("hr").count() == 1
    assert text.locator("p").last.inner_text() == "A_snake_case_name and 2 * 3 * 4 stay."
    links = text.locator("a").evaluate_all("(all) => all.map((link) => [link.href, link.rel, link.target])")
    assert [address for address, _, _ in links] == ["https://example.com/docs", "https://example.com/more"]
    assert all("noopener" in rel and target == "_blank" for _, rel, target in links)


@pytest.mark.parametrize("at", range(0, len(MARKDOWN), 7))
def test_an_unfinished_text_loses_no_word(page_of_text: Callable[[str], str], at: int) -> None:
    text = MARKDOWN[:at]
    shown = page_of_text(text)
    for word in re.findall(r"[a-z]{3,}", re.sub(r"\]\([^)]*\)?|```\w*|https?\S*", " ", text)):
        assert word in shown


@pytest.fixture(scope="module")
def page_of_text(browser: Browser, server: Server) -> Iterator[Callable[[str], str]]:
    """Show a text as the page shows an answer."""
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(server.url)

        def show(text: str) -> str:
            script = """async (text) => {
                const { AnswerView } = await import('/web/answer.js');
                const element = document.createElement('div');
                new AnswerView(element).show([[text, null]]);
                return element.textContent;
            }"""
            return str(page.evaluate(script, text))

        yield show


def test_guesses_have_the_colour_of_their_source(visit: Open) -> None:
    page = ready(visit())
    parts = [("One **two ", None), ("three** `fo", "suffix"), ("ur`", "recycle"), (" five", None)]
    answering(page, *parts)
    send(page, "Count")
    complete(page)
    guesses = page.locator(".answer .guess")
    assert [(each.inner_text(), each.get_attribute("data-source")) for each in guesses.all()] == [
        *(("three", "suffix"), (" ", "suffix"), ("fo", "suffix"), ("ur", "recycle"))
    ]
    assert page.locator(".answer .text strong").inner_text() == "two three"
    expect(page.locator(".answer .numbers")).to_have_text(
        "42 tokens/s · 1.8× plain decoding · 7 of 10 guesses accepted"
    )
    clear = "rgba(0, 0, 0, 0)"
    colour = "(each) => getComputedStyle(each).backgroundColor"
    assert [each.evaluate(colour) for each in guesses.all()] == [clear] * 4
    expect(page.locator(".legend")).to_be_hidden()
    page.get_by_role("button", name="Guesses").click()
    one, _, same, other = (each.evaluate(colour) for each in guesses.all())
    assert clear != one == same != other
    assert page.locator(".legend span").all_inner_texts() == ["copied from the text", "recycled words"]
    page.reload()
    expect(page.get_by_role("button", name="Guesses")).to_have_attribute("aria-pressed", "true")
    assert page.locator(".answer .guess").count() == 4


def test_guesses_of_a_real_answer_are_told(visit: Open) -> None:
    page = ready(visit())

    def longer(route: Route) -> None:
        body = json.loads(route.request.post_data or "{}")
        if body["localspec"]["draft"] == "auto":  # which would guess only where that pays on this machine
            body["localspec"]["draft_length"] = "fixed:tokens=6"
        route.continue_(post_data=json.dumps(body))

    page.route(COMPLETIONS, longer)
    settings(page, temperature="0")
    send(page, "Repeat this sentence three times: the quick brown fox jumps over the lazy dog.")
    complete(page)
    assert page.locator(".answer .guess").count() > 0
    expect(page.locator(".answer .numbers")).to_contain_text("guesses accepted")
    page.select_option("#draft", "off")
    page.get_by_role("button", name="Write anew").click()
    complete(page)
    expect(page.locator(".answer")).to_have_count(1)
    assert page.locator(".answer .guess").count() == 0


@pytest.mark.parametrize("by", ["key", "button"])
def test_an_answer_is_stopped(visit: Open, server: Server, by: str) -> None:
    page = ready(visit())
    send(page, COUNT)
    expect(page.locator(".answer .text")).to_contain_text("2")
    if by == "key":
        page.keyboard.press("Escape")
    else:
        page.get_by_role("button", name="Stop").click()
    complete(page, "Stopped")
    expect(page.locator(".answer .numbers")).to_contain_text("stopped")
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    assert server.ask("POST", "/v1/chat/completions", body)[0] == 200  # the model is free


def test_an_answer_is_written_anew(visit: Open) -> None:
    page = ready(visit())
    bodies = answering(page, ("An answer", None))
    send(page, "First")
    complete(page)
    send(page, "Second")
    complete(page)
    page.get_by_role("button", name="Write anew").first.click()
    complete(page)
    expect(page.locator("article")).to_have_count(2)
    assert [message["content"] for message in bodies[-1]["messages"]] == ["First"]


def test_a_message_is_edited(visit: Open) -> None:
    page = ready(visit())
    bodies = answering(page, ("An answer", None))
    for text in ("First", "Second", "Third"):
        send(page, text)
        complete(page)
    page.locator(".question").nth(1).hover()
    page.get_by_role("button", name="Edit").nth(1).click()
    field = page.get_by_label("Edit your message")
    expect(field).to_have_value("Second")
    field.fill("Changed")
    field.press("Enter")
    complete(page)
    assert page.locator(".bubble").all_inner_texts() == ["First", "Changed"]
    assert [message["content"] for message in bodies[-1]["messages"]] == ["First", "An answer", "Changed"]
    page.get_by_role("button", name="Edit").first.click()
    page.get_by_label("Edit your message").press("Escape")
    assert page.locator(".bubble").all_inner_texts() == ["First", "Changed"]


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_conversations_are_kept(visit: Open, size: tuple[int, int]) -> None:
    page = ready(visit(size))
    answering(page, ("An **answer**", "suffix"))

    def listed() -> list[str]:
        return page.locator("#conversations .open").all_text_contents()

    def menu() -> None:
        if size == NARROW:
            page.get_by_role("button", name="Conversations").click()

    send(page, "First question")
    complete(page)
    menu()
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("#welcome")).to_be_visible()
    send(page, "Second question")
    complete(page)
    page.reload()
    expect(page.locator(".bubble")).to_have_text("Second question")
    assert page.locator(".answer strong").inner_text() == "answer"
    assert listed() == ["Second question", "First question"]
    menu()
    page.get_by_role("button", name="First question", exact=True).click()
    expect(page.locator(".bubble")).to_have_text("First question")
    menu()
    page.locator("#conversations li").nth(1).hover()
    page.get_by_role("button", name="Rename First question").click()
    page.get_by_role("textbox", name="Name").fill("Renamed")
    page.get_by_role("textbox", name="Name").press("Enter")
    assert "Renamed" in listed()
    page.locator("#conversations li").first.hover()
    page.get_by_role("button", name="Delete Second question").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    assert listed() == ["Renamed"]
    page.reload()
    assert listed() == ["Renamed"]
    expect(page.locator(".bubble")).to_have_text("First question")


def test_damaged_conversations_do_no_harm(visit: Open) -> None:
    page = ready(visit())
    page.reload()
    ready(page)
    answering(page, ("Yes", None))
    send(page, "Still there?")
    complete(page)
    assert page.locator("#conversations .open").all_inner_texts() == ["Still there?"]


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_nothing_is_wider_than_the_window(visit: Open, size: tuple[int, int]) -> None:
    page = ready(visit(size))
    assert fits(page)
    table = "\n".join(f"| {cell * 20}" for cell in ("wide | ", "--- | ", "cell | "))
    answering(page, (f"{MARKDOWN}\n\n{WORD}\n\n{table}", "suffix"))
    page.get_by_role("button", name="Guesses").click()
    send(page, WORD)
    complete(page)
    assert fits(page)
    if size == NARROW:
        page.get_by_role("button", name="Conversations").click()
        assert fits(page)
        page.keyboard.press("Escape")
        expect(page.locator("#sidebar")).to_be_hidden()
    page.get_by_role("button", name="Settings").click()
    assert fits(page)


def test_model_text_stays_text(visit: Open) -> None:
    page = ready(visit())
    answering(page, (HOSTILE, "suffix"))
    send(page, HOSTILE)
    complete(page)
    text = page.locator(".answer .text")
    assert text.locator("img, script, b, a").count() == 0
    assert "<b>bold</b>" in text.inner_text()
    assert text.locator("pre").inner_text() == "<script>alert(1)</script>"
    assert page.inner_text(".bubble") == HOSTILE
    assert "bad" not in page.title().split("–")[-1]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(visit: Open, scheme: str) -> None:
    page = ready(visit(color_scheme=scheme))

    def is_dark() -> bool:
        colours = page.evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        )
        back, front = (sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours)
        assert abs(back - front) > 400
        return bool(back < front)

    assert is_dark() == (scheme == "dark")
    page.get_by_role("button", name="Dark theme").click()
    assert is_dark() == (scheme == "light")
    page.reload()
    assert is_dark() == (scheme == "light")


def settings(page: Page, system: str = "", temperature: str = "") -> None:
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("System prompt").fill(system)
    page.get_by_label("Temperature").fill(temperature)
    page.get_by_role("button", name="Done").click()


def test_settings_are_sent(visit: Open) -> None:
    page = ready(visit())
    bodies = answering(page, ("Yes", None))
    send(page, "Hi")
    complete(page)
    assert "temperature" not in bodies[-1]
    assert bodies[-1]["localspec"] == {"draft": "auto", "stats": True}
    settings(page, "You answer in French.", "0.7")
    page.select_option("#draft", "off")
    page.reload()
    ready(page)
    send(page, "Again")
    complete(page)
    assert bodies[-1]["temperature"] == 0.7
    assert bodies[-1]["messages"][0] == {"role": "system", "content": "You answer in French."}
    assert bodies[-1]["localspec"]["draft"] == "off"
    assert bodies[-1]["model"] == MODEL


def test_shift_and_enter_begin_a_line(visit: Open) -> None:
    page = ready(visit())
    bodies = answering(page, ("Yes", None))
    page.fill("#prompt", "one")
    page.press("#prompt", "Shift+Enter")
    page.type("#prompt", "two")
    page.press("#prompt", "Enter")
    complete(page)
    assert bodies[-1]["messages"][-1]["content"] == "one\ntwo"


def test_code_is_copied(visit: Open) -> None:
    page = ready(visit(permissions=["clipboard-read", "clipboard-write"]))
    answering(page, (MARKDOWN, None))
    send(page, "Code")
    complete(page)
    page.get_by_role("button", name="Copy code").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("def reverse(words):\n    return")
    page.locator(".answer footer").get_by_role("button", name="Copy").click()
    assert page.evaluate("navigator.clipboard.readText()") == MARKDOWN


def test_an_error_of_the_server_is_told(visit: Open) -> None:
    page = ready(visit())
    send(page, "word " * 9000)
    expect(page.get_by_role("alert").filter(has_text="context")).to_be_visible()
    page.context.set_offline(True)
    page.route(COMPLETIONS, lambda route: route.abort())
    bodies = answering(page, ("Better", None))
    page.get_by_role("button", name="Write anew").click()
    complete(page)
    assert len(bodies) == 1
    expect(page.locator(".answer .text")).to_have_text("Better")


def test_a_key_is_asked_for_and_kept_in_the_tab(visit: Open, localspec: Localspec) -> None:
    running = Server(localspec, "--api-key", "secret")
    page = visit(url=running.url)
    key = page.get_by_role("textbox", name="API key")
    for wrong in ("guess", "secret"):
        key.fill(wrong)
        key.press("Enter")
        if wrong == "guess":
            expect(page.get_by_role("alert").filter(has_text="refuses this key")).to_be_visible()
    expect(page.locator("#model")).to_have_value(MODEL)
    assert "secret" not in page.evaluate("JSON.stringify(localStorage)")
    page.reload()
    expect(page.locator("#model")).to_have_value(MODEL)
    assert running.stop() == 143


def test_each_control_has_a_name(visit: Open) -> None:
    page = ready(visit())
    answering(page, (MARKDOWN, None))
    send(page, "Names")
    complete(page)
    nameless = page.evaluate(
        """[...document.querySelectorAll('button, input, select, textarea')].filter((each) => !(
            each.getAttribute('aria-label') || each.textContent.trim() && each.tagName === 'BUTTON'
            || each.labels?.length)).map((each) => each.outerHTML)"""
    )
    assert nameless == []
    assert page.get_attribute("html", "lang") == "en"


def test_pictures_for_a_reviewer(visit: Open, tmp_path: Path) -> None:
    """Both widths in both themes can be drawn, which finds styles that a browser refuses."""
    for size in (WIDE, NARROW):
        for scheme in ("light", "dark"):
            page = ready(visit(size, color_scheme=scheme))
            picture = tmp_path / f"{size[0]}-{scheme}.png"
            page.screenshot(path=picture)
            assert picture.stat().st_size > 5000
