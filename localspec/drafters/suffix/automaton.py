"""A suffix automaton of all texts so far: the longest earlier match of a text's end, and what followed it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy

from localspec.core.types import Tokens, shared_prefix

LATER = 2  # the latest continuation is the best, unless another is more than this many times as frequent
DEPTH = 64  # ends of a text, longest first, whose continuation is counted: bounds the cost of a token


class Automaton:
    """The suffix automaton of texts with common beginnings, with counts of each continuation.

    A state stands for the strings that end at the same positions; its longest has `length` tokens, and `link`
    leads to the state of its longest suffix that also ends elsewhere. Grown online as in Blumer et al. 1985,
    for several texts as in Mohri et al. 2009. State 0 is the empty text. Edges lie in arrays of their own:
    `best` is a state's latest edge unless another is much more frequent, -1 without edges; `more` holds the
    edges by token of states with at least two. Only the DEPTH longest states that end a text are counted: in
    a text that repeats one token, short matches are counted too rarely.
    """

    def __init__(self) -> None:
        self.length = array("i", [0])
        self.link = array("i", [-1])
        self.best = array("i", [-1])
        self.total = array("i", [0])
        self.token = array("i")
        self.target = array("i")
        self.count = array("i")
        self.more: dict[int, dict[int, int]] = {}

    def add(self, last: int, token: int) -> int:
        """Append `token` to the text of state `last`, count it, and return the new state."""
        edge = self.edge(last, token)
        state = self._exact(last, token, edge) if edge >= 0 else self._grow(last, token)
        self._count(last, token)
        return state

    def known(self, state: int) -> int:
        """Return the state of the longest suffix with a continuation, 0 without one."""
        while state and self.total[state] == 0:
            state = self.link[state]
        return state

    def _grow(self, last: int, token: int) -> int:
        state = self._state(self.length[last] + 1, 0, -1, 0)
        at, edge = last, -1
        while at >= 0 and (edge := self.edge(at, token)) < 0:
            self._connect(at, token, state)
            at = self.link[at]
        if at >= 0:
            self.link[state] = self._exact(at, token, edge)
        return state

    def _exact(self, at: int, token: int, edge: int) -> int:
        """Return the state whose longest string is that of `at` plus `token`, splitting one off if needed."""
        target, length = self.target[edge], self.length[at] + 1
        if self.length[target] == length:
            return target
        split = self._split(target, length)
        while at >= 0 and (edge := self.edge(at, token)) >= 0 and self.target[edge] == target:
            self.target[edge] = split
            at = self.link[at]
        return split

    def _split(self, state: int, length: int) -> int:
        """Return a new state for the strings of `state` up to `length`, with the same edges."""
        best, more = self.best[state], self.more.get(state)
        split = self._state(length, self.link[state], -1, self.total[state])
        self.link[state] = split
        if more:
            self.more[split] = copies = {token: self._copy(edge) for token, edge in more.items()}
            self.best[split] = copies[self.token[best]]
        elif best >= 0:
            self.best[split] = self._copy(best)
        return split

    def _count(self, last: int, token: int) -> None:
        count, total, best, link, tokens = self.count, self.total, self.best, self.link, self.token
        for _ in range(DEPTH):
            if last <= 0:  # continuations of the empty text are useless
                return
            edge = best[last]
            total[last] += 1
            if tokens[edge] == token:
                count[edge] += 1
            else:
                most, edge = edge, self.more[last][token]
                count[edge] += 1
                if LATER * count[edge] >= count[most]:
                    best[last] = edge
            last = link[last]

    def edge(self, state: int, token: int) -> int:
        """Return the edge of `state` with `token`, -1 without one."""
        best = self.best[state]
        if best < 0 or self.token[best] == token:
            return best
        more = self.more.get(state)
        return -1 if more is None else more.get(token, -1)

    def _connect(self, state: int, token: int, target: int) -> None:
        edge, best = self._new_edge(token, target, 0), self.best[state]
        if best < 0:
            self.best[state] = edge
        elif state in self.more:
            self.more[state][token] = edge
        else:
            self.more[state] = {self.token[best]: best, token: edge}

    def _copy(self, edge: int) -> int:
        return self._new_edge(self.token[edge], self.target[edge], self.count[edge])

    def _new_edge(self, token: int, target: int, count: int) -> int:
        self.token.append(token)
        self.target.append(target)
        self.count.append(count)
        return len(self.token) - 1

    def _state(self, length: int, link: int, best: int, total: int) -> int:
        self.length.append(length)
        self.link.append(link)
        self.best.append(best)
        self.total.append(total)
        return len(self.length) - 1


class Walk:
    """A position in an automaton, which may advance by tokens that are not added to it.

    `length` is the length of the longest match with a continuation, `evidence` the length of its part that
    was not itself guessed from this match.
    """

    def __init__(self, automaton: Automaton, state: int) -> None:
        self._automaton = automaton
        self.state = automaton.known(state)
        self.length = self.evidence = automaton.length[self.state]

    def best(self) -> tuple[int, int, int]:
        """Return the best continuation, its count and the count of all; both counts are 0 without a match."""
        automaton, state = self._automaton, self.state
        edge = automaton.best[state]
        return automaton.token[edge], automaton.count[edge] if state else 0, automaton.total[state]

    def go(self, token: int, *, copied: bool = False) -> None:
        """Advance by `token` to the longest match that ends with it; `copied` if it was guessed here."""
        automaton, state = self._automaton, self.state
        while (edge := automaton.edge(state, token)) < 0 and state:
            state = automaton.link[state]
            self.length = automaton.length[state]
        after = automaton.target[edge] if edge >= 0 else 0
        self.state = automaton.known(after)
        self.length = self.length + 1 if self.state == after and after else automaton.length[self.state]
        self.evidence = min(self.evidence, self.length) if copied else self.length

    def fork(self) -> Walk:
        """Return another walk from the same position."""
        return copy(self)


class Texts:
    """An automaton of the current text and of earlier ones, of about `max_tokens` tokens in all.

    Beyond that the older half is dropped, and so is the beginning of a text longer than half of the limit.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max = max_tokens
        self._clear()

    def _clear(self) -> None:
        self.automaton = Automaton()
        self._earlier: list[array[int]] = []
        self._held = 0
        self._begin()

    def _begin(self) -> None:
        self._text: list[int] = []
        self._states = [0]  # after each token from `_skipped` on
        self._skipped = 0
        self._own = 0  # the position from which tokens are in no earlier text

    def add(self, texts: Iterable[Sequence[int]]) -> None:
        """Take in earlier texts."""
        with self._whole():
            for text in texts:
                self._earlier.append(array("i", text))
                self._read(0, text)

    def follow(self, tokens: Tokens) -> int:
        """Make `tokens` the current text and return its state; what they replace becomes an earlier text."""
        with self._whole():
            self._go_on(tokens)
            read = self._skipped + len(self._states) - 1
            if self._held + len(tokens) - read > self._max:
                self._forget()
                read = self._skipped
            self._states += self._read(self._states[-1], self._text[read:])
        return self._states[-1]

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Drop everything if an interrupt may have come between two arrays."""
        try:
            yield
        except BaseException:
            self._clear()
            raise

    def _go_on(self, tokens: Tokens) -> None:
        """Make `tokens` the current text. Usually it has only grown: one comparison of lists, no copy."""
        known = len(self._text)
        self._text += tokens[known:]
        if self._text != tokens:
            del self._text[known:]
            self._end(shared_prefix(self._text, list(tokens)))
            self._text += tokens[len(self._text) :]

    def _end(self, same: int) -> None:
        """Turn the current text into an earlier one, and its first `same` tokens into the current text."""
        if same == len(self._text):
            return
        own = self._text[max(self._own, self._skipped) :]
        if own:
            self._earlier.append(array("i", own))
        if same <= self._skipped:
            self._begin()
            return
        del self._text[same:], self._states[same - self._skipped + 1 :]
        self._own = same

    def _forget(self) -> None:
        """Start over with the latest earlier texts that leave room for the current one."""
        text, earlier = self._text, self._earlier
        room = self._max // 2 - len(text)
        latest: list[array[int]] = []
        while earlier and len(earlier[-1]) <= room:
            latest.append(earlier.pop())
            room -= len(latest[-1])
        self._clear()
        self.add(reversed(latest))
        self._text = text
        self._skipped = max(0, len(text) - self._max // 2)

    def _read(self, state: int, tokens: Sequence[int]) -> list[int]:
        """Append `tokens` to the text of `state`; return the state after each."""
        states = []
        for token in tokens:
            state = self.automaton.add(state, token)
            states.append(state)
        self._held += len(tokens)
        return states
