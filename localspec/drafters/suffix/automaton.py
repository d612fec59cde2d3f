"""All texts so far, so that the longest earlier match of a text's end, and what followed it, is at hand."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from localspec.core.types import Tokens, shared_prefix

LATER = 2  # the latest continuation is the best one unless another is more than so many times as frequent
DEPTH = 64  # ends of a text, longest first, whose continuation is counted: bounds what a token costs


class Automaton:
    """The suffix automaton of texts that share their beginnings, and how often each token followed.

    A state stands for strings that end at the same places; its longest has `length` tokens, and `link` leads
    to the state of its longest end that ends elsewhere too. Blumer et al. 1985, grown online; of several
    texts as in Mohri et al. 2009. State 0 is that of the empty text. Edges lie in arrays of their own:
    `best` is a state's latest edge unless another is much more frequent, -1 without any; `more` has the edges
    by token of states with at least two. Counts reach up to the DEPTH longest states that end a text: in a
    text of one token again and again, short matches are counted too seldom.
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
        """Return the state of the text that is the one of state `last` and `token`; count the token."""
        edge = self.edge(last, token)
        state = self._exact(last, token, edge) if edge >= 0 else self._grow(last, token)
        self._count(last, token)
        return state

    def known(self, state: int) -> int:
        """Return the state of the longest end that something followed, 0 when nothing did."""
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
        """Return the state whose longest string is that of `at` and `token`, split off if need be."""
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
            if last <= 0:  # what follows the empty text is of no use
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
        """Return the edge of `state` with `token`, -1 when there is none."""
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
    """A place in an automaton behind a text, which may go on with tokens that are not taken in.

    `length` is that of the longest match there that something followed, `evidence` that of its part which
    was not guessed from this very match.
    """

    def __init__(self, automaton: Automaton, state: int) -> None:
        self._automaton = automaton
        self.state = automaton.known(state)
        self.length = self.evidence = automaton.length[self.state]

    def best(self) -> tuple[int, int, int]:
        """Return what best follows, how often it did, and how often anything did; 0 times after no match."""
        automaton, state = self._automaton, self.state
        edge = automaton.best[state]
        return automaton.token[edge], automaton.count[edge] if state else 0, automaton.total[state]

    def go(self, token: int, *, copied: bool = False) -> None:
        """Go on with `token` to the longest match with it at its end; is it `copied` from this very match?"""
        automaton, state = self._automaton, self.state
        while (edge := automaton.edge(state, token)) < 0 and state:
            state = automaton.link[state]
            self.length = automaton.length[state]
        after = automaton.target[edge] if edge >= 0 else 0
        self.state = automaton.known(after)
        self.length = self.length + 1 if self.state == after and after else automaton.length[self.state]
        self.evidence = min(self.evidence, self.length) if copied else self.length


class Texts:
    """An automaton of the current text and of earlier ones, at most about `most` tokens in all.

    When they are more, the older half is forgotten, and so is the beginning of a text that is longer than
    half of `most`.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._clear()

    def _clear(self) -> None:
        self.automaton = Automaton()
        self._earlier: list[array[int]] = []
        self._held = 0
        self._begin()

    def _begin(self) -> None:
        self._text: list[int] = []
        self._states = [0]  # after each number of tokens from `_skipped` on
        self._skipped = 0
        self._own = 0  # where the tokens begin that no earlier text has

    def add(self, texts: Iterable[Sequence[int]]) -> None:
        """Take in earlier texts."""
        with self._whole():
            for text in texts:
                self._earlier.append(array("i", text))
                self._read(0, text)

    def follow(self, tokens: Tokens) -> int:
        """Take in `tokens` as the current text and return its state; what differs is kept as earlier text."""
        with self._whole():
            self._go_on(tokens)
            read = self._skipped + len(self._states) - 1
            if self._held + len(tokens) - read > self._most:
                self._forget()
                read = self._skipped
            self._states += self._read(self._states[-1], self._text[read:])
        return self._states[-1]

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Forget everything when an interrupt may have come between two arrays."""
        try:
            yield
        except BaseException:
            self._clear()
            raise

    def _go_on(self, tokens: Tokens) -> None:
        """Make `tokens` the current text. Nearly always it has grown: one comparison of lists, no copy."""
        known = len(self._text)
        self._text += tokens[known:]
        if self._text != tokens:
            del self._text[known:]
            self._end(shared_prefix(self._text, list(tokens)))
            self._text += tokens[len(self._text) :]

    def _end(self, same: int) -> None:
        """Make the current text an earlier one, and its first `same` tokens the current text."""
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
        """Begin anew with the latest of the earlier texts that leave room for the current one."""
        text, earlier = self._text, self._earlier
        room = self._most // 2 - len(text)
        latest: list[array[int]] = []
        while earlier and len(earlier[-1]) <= room:
            latest.append(earlier.pop())
            room -= len(latest[-1])
        self._clear()
        self.add(reversed(latest))
        self._text = text
        self._skipped = max(0, len(text) - self._most // 2)

    def _read(self, state: int, tokens: Sequence[int]) -> list[int]:
        """Return the states after each of `tokens` behind the text of `state`."""
        states = []
        for token in tokens:
            state = self.automaton.add(state, token)
            states.append(state)
        self._held += len(tokens)
        return states
