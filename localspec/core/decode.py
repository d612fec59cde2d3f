"""The decoding loop: draft, verify, emit. Plain decoding is this loop with an empty draft."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from time import perf_counter
from typing import NamedTuple

from localspec.core.contracts import Decoding, Drafter, DraftLengthPolicy, Verifier
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler
from localspec.core.stop import OutputProcessor
from localspec.core.types import Branch, Candidate, Guess, LazyGuess, Logits, Proposal, Step, Tokens

GRAMMAR = "grammar"  # the source of guesses that a grammar forces
AHEAD, NEARLY = "ahead", 0.98  # the source of guesses that a branch told, and their confidence


def decode(
    prompt: Tokens,
    target: Cursor,
    drafter: Drafter,
    policy: DraftLengthPolicy,
    verifier: Verifier,
    sampler: Sampler,
    processor: OutputProcessor,
) -> Generator[Step, None, None]:
    """Yield the steps of the answer to `prompt` until one has a finish reason.

    Effects: `target` holds the prompt and the answer, possibly followed by rejected guesses. Raises what the
    engine raises. An interrupt or a closed iterator ends the answer in every part.
    """
    drafter.begin(prompt)
    policy.begin(prompt)
    parts = _Parts(target, drafter, policy, verifier, sampler, processor)
    text, ahead, finish = list(prompt), list[Guess](), None
    try:
        while finish is None:
            last, ahead = _step(text, ahead, parts)
            text += last.tokens
            finish = last.finish
            policy.learn(last)
            yield last
    finally:
        policy.end()
        drafter.end()


class _Parts(NamedTuple):
    """The parts of a loop."""

    target: Cursor
    drafter: Drafter
    policy: DraftLengthPolicy
    verifier: Verifier
    sampler: Sampler
    processor: OutputProcessor


def _step(text: list[int], ahead: Sequence[Guess], parts: _Parts) -> tuple[Step, list[Guess]]:
    """Draft after `text`, verify the draft in one target pass; return what that adds to the answer.

    The draft begins with what the last pass told `ahead`, if it pays; what this one tells comes second.
    """
    target, drafter, policy, verifier, sampler, processor = parts
    started = perf_counter()
    draft = make_draft(text, drafter, policy, sampler, processor.remaining - 1, ahead, target.branches)
    guesses = draft.guesses
    drafted = perf_counter()
    whole = text + [guess.token for guess in guesses]
    logits = target.read(whole, len(guesses) + 1, draft.tree())
    read, company = perf_counter(), target.session.company
    rows, beside = logits[: len(guesses) + 1], logits[len(guesses) + 1 :]
    verdict = verifier.verify(text, guesses, rows, sampler)
    run = [*(guess.token for guess in guesses[: verdict.accepted]), verdict.token]
    likely = sampler.likelihoods(rows, run)
    verified = perf_counter()
    ahead = draft.told(text, run, beside, sampler)
    drafter.observe(whole, rows, verdict)
    drafter.observe_branches(text, draft.branches, beside)
    observed = perf_counter()
    output = processor.process(run)
    step = Step(
        tokens=output.tokens,
        drafted=len(guesses),
        accepted=min(verdict.accepted, len(output.tokens)),
        draft_seconds=drafted - started + observed - verified,
        target_seconds=read - drafted - company.waited,
        text=output.text,
        finish=output.finish,
        draft=tuple(guesses),
        costs=tuple(draft.costs),
        proposals=tuple(draft.proposals),
        marks=output.marks,
        company=company,
        likelihoods=tuple(likely[: len(output.tokens)]),
        branches=tuple(draft.branches),
        ahead=tuple(guess.token for guess in ahead),
    )
    return step, ahead


class Draft(NamedTuple):
    """The guesses of one step, the seconds of each, the candidates that the policy was asked about, branches.

    Verification walks `guesses` alone: their rows are those of plain decoding, to the bit where the engine
    can. The rows of branches may be rounded otherwise, so they decide nothing; they tell what the next step
    begins with.
    """

    guesses: list[Guess]
    costs: list[float]
    proposals: list[Proposal]
    branches: list[Guess]

    def places(self) -> dict[tuple[int, ...], int]:
        """Return the row of each guess, by the tokens from the text to it; that of the text is 0."""
        path = tuple(guess.token for guess in self.guesses)
        rows = {path[:length]: length for length in range(len(path) + 1)}
        for row, guess in enumerate(self.branches, len(path) + 1):
            rows[(*(guess.after or ()), guess.token)] = row
        return rows

    def tree(self) -> list[Branch]:
        """Return the branches as a target reads them."""
        if not self.branches:
            return []
        rows = self.places()
        return [Branch(guess.token, rows[guess.after or ()]) for guess in self.branches]

    def told(self, text: Tokens, run: Sequence[int], logits: Logits, sampler: Sampler) -> list[Guess]:
        """Return what a branch says of the tokens after `text` and the verified `run`."""
        found: list[Guess] = []
        rows, first = self.places() if self.branches else {}, len(self.guesses) + 1
        while (row := rows.get((*run, *(guess.token for guess in found)), 0)) >= first:
            guess = sampler.guess(logits[row - first], [*text, *run, *(guess.token for guess in found)])
            found.append(guess._replace(confidence=NEARLY, source=AHEAD))
        return found


def make_draft(
    tokens: Tokens,
    drafter: Drafter,
    policy: DraftLengthPolicy,
    sampler: Sampler,
    limit: int,
    ahead: Sequence[Guess] = (),
    most: int = 0,
) -> Draft:
    """Return a draft after `tokens` of at most `limit` guesses, as long as the policy wants more.

    It begins with the guesses `ahead`, and has at most `most` guesses on branches. A declined lazy guess
    costs nothing, and others may follow; a declined guess ends the draft, unless it is one of a branch.
    """
    draft, taken = Draft([], [], [], []), list[Guess]()
    path: tuple[int, ...] = ()
    known = {path}  # the tokens from the text to each guess
    candidates = _candidates(tokens, draft.guesses, ahead, drafter, sampler)
    started = perf_counter()
    while len(taken) < limit and (candidate := next(candidates, None)) is not None:
        if isinstance(candidate, Guess) and candidate.after is not None:
            node = (*candidate.after, candidate.token)
            fits = len(draft.branches) < most and candidate.after in known and node not in known
            if fits and policy.wants_more(taken, candidate):
                draft.branches.append(candidate)
                taken.append(candidate)
                known.add(node)
            continue
        wanted = policy.wants_more(taken, candidate)
        behind = candidate.behind if isinstance(candidate, LazyGuess) else 0
        draft.proposals.append(Proposal(candidate.source, behind, wanted))
        if not wanted and isinstance(candidate, Guess):
            break
        guess = drawn(candidate) if wanted else None
        if guess is not None and sampler.constrained and not sampler.allows(guess.token, [*tokens, *path]):
            break
        if guess is not None:
            draft.guesses.append(guess)
            taken.append(guess)
            path += (guess.token,)
            known.add(path)
            ended = perf_counter()
            draft.costs.append(ended - started)
            started = ended
    return draft


def _candidates(
    tokens: Tokens, draft: list[Guess], ahead: Sequence[Guess], drafter: Drafter, sampler: Sampler
) -> Iterator[Candidate]:
    """Yield the guesses `ahead`, then the drafter's candidates, and what a grammar forces between them.

    `draft` holds the guesses taken so far.
    """
    yield from ahead
    if sampler.constrained:
        yield from _constrained_candidates(tokens, draft, drafter, sampler)
    else:
        text = [*tokens, *(guess.token for guess in draft)]
        yield from _proposed(text, len(tokens), drafter, sampler)


def _proposed(text: list[int], begin: int, drafter: Drafter, sampler: Sampler) -> Iterator[Candidate]:
    """Yield the drafter's candidates after `text`, with the tokens of branches from position `begin` on."""
    between = tuple(text[begin:])
    for candidate in drafter.propose(text, sampler):
        if between and isinstance(candidate, Guess) and candidate.after is not None:
            candidate = candidate._replace(after=between + candidate.after)
        yield candidate


def _constrained_candidates(
    tokens: Tokens, draft: list[Guess], drafter: Drafter, sampler: Sampler
) -> Iterator[Candidate]:
    """Yield the tokens that the grammar forces, at no cost, and the drafter's candidates between them.

    `draft` holds the guesses taken so far. A guess that the grammar forbids ends the draft, one of a branch
    is left out.
    """
    while True:
        text = [*tokens, *(guess.token for guess in draft)]
        for token in sampler.forced(text):
            yield Guess(token, source=GRAMMAR)
            text.append(token)
        for offered in _proposed(list(text), len(tokens), drafter, sampler):
            candidate = _permitted(offered, sampler, tokens, text)
            if candidate is None and isinstance(offered, Guess) and offered.after is not None:
                continue
            if candidate is None:
                return
            taken = len(draft)
            yield candidate
            text += (guess.token for guess in draft[taken:])
            if len(draft) > taken and sampler.forced(text):
                break
        else:
            return


def _permitted(candidate: Candidate, sampler: Sampler, tokens: Tokens, text: Tokens) -> Candidate | None:
    """Return a candidate for the token after `text`, or for a branch after `tokens`; None if it is forbidden.

    What becomes of a lazy guess is known only when it is drawn.
    """
    if isinstance(candidate, LazyGuess):
        return candidate
    if candidate.after is None:
        return sampler.permitted(candidate, text)
    branch = (*candidate.after, candidate.token)
    allowed = (sampler.allows(token, [*tokens, *branch[:at]]) for at, token in enumerate(branch))
    return candidate if all(allowed) else None


def drawn(candidate: Candidate) -> Guess | None:
    """Return the guess of a candidate; computes that of a lazy one."""
    return candidate if isinstance(candidate, Guess) else candidate.draw()


def run_decoding(
    prompt: Tokens, decoding: Decoding, processor: OutputProcessor
) -> Generator[Step, None, None]:
    """Yield the steps of a decoding method, one token each, until one has a finish reason.

    Raises what the engine raises. `target_seconds` of a step is all time that choosing its token took,
    however many passes that needed.
    """
    text = list(prompt)
    finish = None
    while finish is None:
        started = perf_counter()
        token = decoding.choose(text)
        seconds = perf_counter() - started
        output = processor.process([token])
        text += output.tokens
        finish = output.finish
        yield Step(
            output.tokens,
            0,
            0,
            draft_seconds=0.0,
            target_seconds=seconds,
            text=output.text,
            finish=finish,
            marks=output.marks,
        )
