"""Damage inputs: flipped bits, cut and repeated pieces, other numbers, types and nesting."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

# Numbers that overflow, allocate, loop or are none, as bytes of a binary format.
NUMBERS = (0, 1, 2, 7, 31, 127, 128, 255, 256, 65535, 1 << 20, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
LARGE = (*NUMBERS, 1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)

# Values in place of others in JSON, TOML and the like.
VALUES = (
    *("0", "1", "-1", "2", "0.5", "1e308", "1e999", "-0.0", "NaN", "Infinity", "nan", "inf"),
    *(str(1 << bits) for bits in (16, 31, 32, 40, 62, 63, 64, 100)),
    *("9" * 400, "9" * 5000, "true", "false", "null", '""', "[]", "{}", "[1, 2, 3]", '["a"]', '{"a": 1}'),
    *('"' + "x" * 300 + '"', '"\\u0000"', '"\\ud800"', '"../../../../victim"', '"/etc/passwd"', '"\x1b[2J"'),
    *("[" * 50 + "]" * 50, "[" * 100_000 + "]" * 100_000, '{"a":' * 5000 + "1" + "}" * 5000, "[" * 2000),
    *('"ä\u2028"', "1979-05-27", "[[1]]", "[true]", '[{"a": null}]'),
)
TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+_-]*|true|false|null|[\[\]{}(),:=|*+?]|\w+')
VALUE = re.compile(rb'"(?:[^"\\]|\\.)*"(?:\s*:)?|-?\d[\d.eE+_-]*|true|false|null')  # and the keys of objects
GROUP = re.compile(rb"\[[^\[\]]*\]|\{[^{}]*\}")

Change = Callable[[bytes, random.Random], bytes]


def mutated(data: bytes, dice: random.Random, binary: bool) -> bytes:
    """Return `data` with one to three changes."""
    changes = BINARY if binary else TEXT
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        data = dice.choice(changes)(data, dice)
    return data


def _place(data: bytes, dice: random.Random) -> int:
    """Choose a place, most of the time near the start: headers matter most."""
    return dice.randrange(min(len(data), dice.choice((256, 2048, 1 << 30)))) if data else 0


def flip(data: bytes, dice: random.Random) -> bytes:
    """Flip one to eight bits."""
    changed = bytearray(data)
    for _ in range(dice.randint(1, 8) if data else 0):
        changed[_place(data, dice)] ^= 1 << dice.randrange(8)
    return bytes(changed)


def cut(data: bytes, dice: random.Random) -> bytes:
    """Cut off the end."""
    return data[: _place(data, dice)]


def drop(data: bytes, dice: random.Random) -> bytes:
    """Leave out a piece."""
    at = _place(data, dice)
    return data[:at] + data[at + dice.choice((1, 2, 4, 8, 64)) :]


def repeat(data: bytes, dice: random.Random) -> bytes:
    """Insert a piece a second time."""
    at, size = _place(data, dice), dice.choice((1, 4, 8, 64, 512))
    return data[: at + size] + data[at:]


def noise(data: bytes, dice: random.Random) -> bytes:
    """Overwrite a piece by zeros, ones or random bytes."""
    at, size = _place(data, dice), dice.choice((1, 4, 8, 64))
    new = dice.choice((bytes(size), b"\xff" * size, dice.randbytes(size)))
    return data[:at] + new + data[at + size :]


def swap_number(data: bytes, dice: random.Random) -> bytes:
    """Overwrite four or eight bytes by a number."""
    at, size = _place(data, dice), dice.choice((4, 8))
    number = dice.choice(NUMBERS if size == 4 else LARGE)
    return data[:at] + number.to_bytes(size, "little") + data[at + size :]


def swap_value(data: bytes, dice: random.Random) -> bytes:
    """Put another value in the place of one."""
    pattern = GROUP if dice.random() < 0.25 else VALUE
    found = [match for match in pattern.finditer(data) if not match.group().endswith(b":")]
    if not found:
        return data
    old = dice.choice(found)
    return data[: old.start()] + dice.choice(VALUES).encode("utf-8") + data[old.end() :]


def swap_token(data: bytes, dice: random.Random) -> bytes:
    """Put one token of the text in the place of another."""
    found = list(TOKEN.finditer(data))
    if not found:
        return data
    old, new = dice.choice(found), dice.choice(found)
    return data[: old.start()] + new.group() + data[old.end() :]


def drop_token(data: bytes, dice: random.Random) -> bytes:
    """Leave out a token."""
    found = list(TOKEN.finditer(data))
    if not found:
        return data
    old = dice.choice(found)
    return data[: old.start()] + data[old.end() :]


BINARY: tuple[Change, ...] = (flip, flip, cut, drop, repeat, noise, swap_number, swap_number, swap_number)
TEXT: tuple[Change, ...] = (
    *(flip, cut, drop, repeat, noise),
    *(swap_value, swap_value, swap_value, swap_value, swap_token, swap_token, drop_token),
)
