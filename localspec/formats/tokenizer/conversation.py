"""Encode a conversation so that only the chat template writes special tokens, never the text of a message."""

from __future__ import annotations

import json
import re
import secrets
import string
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from localspec.errors import PromptError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]
Render = Callable[[Messages, Tools | None], str]

FIRST_SENTINEL = 0xA000  # Yi syllables: letters without case, so no filter or normalizer changes them
WRITTEN = ("content", "reasoning_content")  # a model's own text, in which a template looks for its own tags
MAX_PASSES = 8  # over text that a normalizer turns into further marks


class ConversationEncoder:
    """Encodes the conversations of one model.

    The text of a special token in a message, a tool's description or its result is ordinary text. While
    messages have no such text, the tokens are those of the rendered template as a whole. Otherwise the text
    gets a sentinel character behind the first character of each mark before the template is rendered, and
    the stretches that hold a sentinel are encoded without it, by a tokenizer that knows no marks.
    """

    def __init__(self, tokenizer: Tokenizer, template: str) -> None:
        """`template` is the source of the chat template: an added token is a mark if it occurs in it."""
        self._tokenizer = tokenizer
        self._source = template
        self._added = tokenizer.get_added_tokens_decoder()
        self._all = _Marks(token.content for token in self._added.values() if self._is_mark(token))
        self._special = _Marks(token.content for token in self._added.values() if token.special)

    def encode(self, render: Render, messages: Messages, tools: Tools | None = None) -> list[int]:
        """Return the tokens of a conversation; `render` is the chat template.

        Raises what `render` raises, and PromptError for text that has every character there is.
        """
        texts = [*_strings(messages), *_strings(tools), self._source]
        sentinel = _free_character([*texts, *(token.content for token in self._added.values())])
        marked, marked_tools = self._marked(messages, tools, sentinel)
        if (marked, marked_tools) == (list(messages), list(tools or ())):
            return _ids(self._tokenizer, render(messages, tools))
        text = render(marked, marked_tools or None).replace(_escaped(sentinel), sentinel)
        return self._encode_marked(text, sentinel)

    def _is_mark(self, token: Any) -> bool:
        """Return whether text of a message must not become this added token.

        Runs of blanks and tags of HTML, which some vocabularies have, are no marks: they are text.
        """
        named = any(map(str.isalnum, token.content))
        return named and (token.special or token.content in self._source or token.content.startswith("<|"))

    def _marked(self, messages: Messages, tools: Tools | None, sentinel: str) -> tuple[list[Any], list[Any]]:
        def marked(value: Any, marks: _Marks) -> Any:
            return _mapped(value, lambda text: self._mark(text, marks, sentinel))

        found = [
            {
                key: value if key == "role" else marked(value, self._marks_in(message, key))
                for key, value in message.items()
            }
            for message in messages
        ]
        return found, marked(list(tools or ()), self._all)

    def _marks_in(self, message: Mapping[str, Any], key: str) -> _Marks:
        written = message.get("role") == "assistant" and key in WRITTEN
        return self._special if written else self._all

    def _mark(self, text: str, marks: _Marks, sentinel: str) -> str:
        text = _inserted(text, marks.places(text), sentinel)
        if not (self._normalizes and text):
            return text
        for _ in range(MAX_PASSES):
            spans = self._spans(text, self._tokenizer.encode(text, add_special_tokens=False))
            places = [begin for _, begin, end, content in spans if content in marks.texts and end > begin + 1]
            if not places:
                break
            text = _inserted(text, places, sentinel)
        return text

    @cached_property
    def _normalizes(self) -> bool:
        """Return whether other text than an added token's own may become it, such as capitals."""
        return self._tokenizer.normalizer is not None and any(
            token.normalized for token in self._added.values()
        )

    def _spans(self, text: str, encoding: Any) -> Iterator[tuple[int, int, int, str]]:
        """Yield the added tokens in an encoding: index, begin and end in the text, content."""
        for index, (number, (begin, end)) in enumerate(zip(encoding.ids, encoding.offsets, strict=True)):
            token = self._added.get(number)
            if token is None or not self._is_written(text[begin:end].strip(), token):
                continue
            while token.lstrip and begin and text[begin - 1].isspace():
                begin -= 1
            while token.rstrip and end < len(text) and text[end].isspace():
                end += 1
            yield index, begin, end, token.content

    def _is_written(self, text: str, token: Any) -> bool:
        """Return whether a text is an added token's, and not one that the vocabulary does not know."""
        if text == token.content.strip():
            return True
        normalizer = self._tokenizer.normalizer
        if not (token.normalized and normalizer):
            return False
        return bool(normalizer.normalize_str(text) == normalizer.normalize_str(token.content))

    def _encode_marked(self, text: str, sentinel: str) -> list[int]:
        """Encode the stretches between the template's own tokens, those with a sentinel as plain text."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        ids: list[int] = []
        index, begin, before = 0, 0, None
        for own, start, end, content in [
            *self._spans(text, encoding),
            (len(encoding.ids), len(text), len(text), ""),
        ]:
            stretch = text[begin:start]
            if sentinel in stretch:
                ids += self.plain(stretch.replace(sentinel, ""), before)
            else:
                ids += encoding.ids[index:own]
            ids += encoding.ids[own : own + 1]
            index, begin, before = own + 1, end, content
        return ids

    def plain(self, text: str, before: str | None) -> list[int]:
        """Encode text behind the added token `before`, or at the beginning, without any added token."""
        tokenizer, boundaries = self._plain
        if before is None:
            return _ids(tokenizer, text)
        normalized = any(token.normalized for token in self._added.values() if token.content == before)
        boundary = boundaries[normalized]
        ids = _ids(tokenizer, boundary + text)
        return ids[ids.index(_id_of(tokenizer, boundary)) + 1 :]

    @cached_property
    def _plain(self) -> tuple[Tokenizer, dict[bool, str]]:
        """The tokenizer without added tokens, but with two boundaries: one normalized and one not.

        Text behind a boundary is encoded as text behind an added token is, with or without a blank before
        its first word. Their names are random: no file can hold them.
        """
        from tokenizers import AddedToken, Tokenizer

        config = json.loads(self._tokenizer.to_str())
        config |= {"added_tokens": [], "post_processor": None}
        _hide(config["model"], {token.content for token in self._added.values() if self._is_mark(token)})
        tokenizer = Tokenizer.from_str(json.dumps(config))
        boundaries = {normalized: _random_name() for normalized in (False, True)}
        tokenizer.add_tokens([AddedToken(name, normalized=kind) for kind, name in boundaries.items()])
        return tokenizer, boundaries


class _Marks:
    """Texts that must not stand in a message as they are."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = {text for text in texts if len(text) > 1}
        self._lengths = sorted({len(text) for text in self.texts})
        self._beginnings = {text[:length] for text in self.texts for length in range(1, len(text))}
        firsts = "".join(sorted(re.escape(text) for text in {text[0] for text in self.texts}))
        self._first = re.compile(f"[{firsts}]" if firsts else r"(?!)")

    def places(self, text: str) -> list[int]:
        """Return the places of marks, and of the beginning of a mark at the end of the text."""
        return [match.start() for match in self._first.finditer(text) if self._begins(text, match.start())]

    def _begins(self, text: str, at: int) -> bool:
        if any(text[at : at + length] in self.texts for length in self._lengths):
            return True
        return len(text) - at < self._lengths[-1] and text[at:] in self._beginnings


def _id_of(tokenizer: Tokenizer, token: str) -> int:
    found: int | None = tokenizer.token_to_id(token)
    assert found is not None
    return found


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def _inserted(text: str, places: Sequence[int], sentinel: str) -> str:
    """Return a text with a sentinel behind the character at each of `places`."""
    ends = [0, *(place + 1 for place in places), len(text)]
    return sentinel.join(text[begin:end] for begin, end in zip(ends, ends[1:], strict=False))


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value of JSON with each string changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(key, change): _mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(inner, change) for inner in value]
    return value


def _strings(value: Any) -> list[str]:
    """List all strings of a value of JSON, keys included."""
    found: list[str] = []

    def note(text: str) -> str:
        found.append(text)
        return text

    _mapped(value, note)
    return found


def _free_character(texts: Sequence[str]) -> str:
    """Return a letter that no text has, neither itself nor as an escape of JSON.

    It is printable, so that Python's `repr`, which some templates use, does not escape it.
    """
    used = set().union(*texts)
    for code in range(FIRST_SENTINEL, sys.maxunicode):
        letter = chr(code)
        if letter in used or unicodedata.category(letter) != "Lo":
            continue
        if unicodedata.normalize("NFKD", letter) == letter and not any(
            _escaped(letter) in text for text in texts
        ):
            return letter
    raise PromptError("The text has every letter of Unicode", "Leave some out")


def _escaped(letter: str) -> str:
    return json.dumps(letter)[1:-1]


def _random_name() -> str:
    return "".join(secrets.choice(string.ascii_lowercase) for _ in range(32))


def _hide(model: dict[str, Any], marks: set[str]) -> None:
    """Rename the marks in a tokenizer's vocabulary, so that no text becomes one of them."""
    hidden = {mark: f"{_random_name()}{mark}" for mark in marks if mark != model.get("unk_token")}
    if isinstance(model["vocab"], list):  # Unigram: pairs of text and score
        model["vocab"] = [[hidden.get(text, text), score] for text, score in model["vocab"]]
        return
    model["vocab"] = {hidden.get(text, text): number for text, number in model["vocab"].items()}
    if "merges" in model:
        model["merges"] = [merge for merge in model["merges"] if _merged(merge) not in hidden]


def _merged(merge: str | Sequence[str]) -> str:
    return "".join(merge.split(" ")) if isinstance(merge, str) else "".join(merge)
