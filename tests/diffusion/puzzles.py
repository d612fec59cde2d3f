"""Sums and brackets: puzzles for a toy diffusion model, and an exact check of their answers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

END, MASK, PAD = ";", "<mask>", "<pad>"
ALPHABET = [*"0123456789+=()[]", END, MASK, PAD]
PAIRS = {"(": ")", "[": "]"}
BRACKETS = 16  # characters of a text of brackets
LONGEST = 24  # characters of a puzzle with its answer, in whole blocks


class Puzzle(NamedTuple):
    """A prompt, and an answer that is right; a text of brackets may have others."""

    prompt: str
    answer: str


def held_out(left: int, right: int) -> bool:
    """Return whether a sum is kept from training."""
    return (left * 31 + right * 17) % 10 == 0


def addition(dice: random.Random, *, tested: bool) -> Puzzle:
    """Draw a sum of two numbers of two digits."""
    while True:
        left, right = dice.randrange(100), dice.randrange(100)
        if held_out(left, right) == tested:
            return Puzzle(f"{left:02}+{right:02}=", f"{left + right:03}{END}")


def brackets(dice: random.Random) -> Puzzle:
    """Draw a balanced text of brackets of a fixed length, cut in two."""
    text, open_ones = "", list[str]()
    while len(text) < BRACKETS:
        left = BRACKETS - len(text)
        close = open_ones and (len(open_ones) >= left or dice.random() < 0.5)
        if close:
            text += PAIRS[open_ones.pop()]
        else:
            text += (chosen := dice.choice("(["))
            open_ones.append(chosen)
    cut = dice.randrange(4, 9)
    return Puzzle(text[:cut], text[cut:] + END)


def drawn(seed: int, *, tested: bool) -> Iterator[Puzzle]:
    """Yield puzzles of both kinds without end; sums are those kept from training, or the others."""
    dice = random.Random(f"{seed} {tested}")
    while True:
        yield addition(dice, tested=tested) if dice.random() < 0.6 else brackets(dice)


def is_right(prompt: str, answer: str) -> bool:
    """Return whether an answer, with or without its end, solves a puzzle."""
    answer = answer.partition(END)[0]
    if prompt.endswith("="):
        left, _, right = prompt[:-1].partition("+")
        return answer == f"{int(left) + int(right):03}"
    return len(prompt + answer) == BRACKETS and balanced(prompt + answer)


def balanced(text: str) -> bool:
    """Return whether each bracket is closed by its own kind, in order."""
    open_ones: list[str] = []
    for sign in text:
        if sign in PAIRS:
            open_ones.append(PAIRS[sign])
        elif not open_ones or open_ones.pop() != sign:
            return False
    return not open_ones
