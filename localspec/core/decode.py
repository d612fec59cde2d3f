"""The decoding loop: draft, verify, emit. Plain decoding is this loop with an empty draft."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from time import perf_counter
from typing import NamedTuple

from localspec.core.contracts import Decoding, Drafter, DraftLengthPolicy, Verifier
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler
from localspec.core.stop import OutputProcessor
from localspec.core.types import Candidate, Guess, LazyGuess, Proposal, Step, Tokens

GRAMMAR = "grammar"  # the source of guesses that a grammar forces


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
    text, finish = list(prompt), None
    try:
        while finish is None:
            last = _step(text, target, drafter, policy, verifier, sampler, processor)
            text += last.tokens
            finish = last.finish
            policy.learn(last)
            yield last
    finally:
        policy.end()
        drafter.end()


def _step(
    text: list[int],
    target: Cursor,
    drafter: Drafter,
    policy: DraftLengthPolicy,
    verifier: Verifier,
    sampler: Sampler,
    processor: OutputProcessor,
) -> Step:
    """Draft after `text`, verify the draft in one target pass, and return what that adds to the answer."""
    started = perf_counter()
    draft = make_draft(text, drafter, policy, sampler, processor.remaining - 1)
    guesses = draft.guesses
    drafted = perf_counter()
    whole = text + [guess.token for guess in guesses]
    logits = target.read(whole, len(guesses) + 1)
    read, company = perf_counter(), target.session.company
    verdict = verifier.verify(text, guesses, logits, sampler)
    run = [*(guess.token for guess in guesses[: verdict.accepted]), verdict.token]
    likely = sampler.likelihoods(logits, run)
    verified = perf_counter()
    drafter.observe(whole, logits, verdict)
    observed = perf_counter()
    output = processor.process(run)
    return Step(
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
    )


class Draft(NamedTuple):
    """The guesses of one step, the seconds of each, and the candidates that the policy was asked about."""

    guesses: list[Guess]
    costs: list[float]
    proposals: list[Proposal]


def make_draft(
    tokens: Tokens, drafter: Drafter, policy: DraftLengthPolicy, sampler: Sampler, limit: int
) -> Draft:
    """Return a draft after `tokens` of at most `limit` guesses, as long as the policy wants more.

    A declined lazy guess costs nothing, and the drafter may have another candidate; a declined guess ends the
    draft.
    """
    draft = Draft([], [], [])
    if sampler.constrained:
        candidates = _constrained_candidates(tokens, draft.guesses, drafter, sampler)
    else:
        candidates = drafter.propose(tokens, sampler)
    started = perf_counter()
    while len(draft.guesses) < limit and (candidate := next(candidates, None)) is not None:
        wanted = policy.wants_more(draft.guesses, candidate)
        if isinstance(candidate, LazyGuess):
            draft.proposals.append(Proposal(candidate.source, candidate.behind, wanted))
        else:
            draft.proposals.append(Proposal(candidate.source, 0, wanted))
            if not wanted:
                break
        guess = drawn(candidate) if wanted else None
        if guess is not None:
            draft.guesses.append(guess)
            ended = perf_counter()
            draft.costs.append(ended - started)
            started = ended
    return draft


def _constrained_candidates(
    tokens: Tokens, draft: list[Guess], drafter: Drafter, sampler: Sampler
) -> Iterator[Candidate]:
    """Yield the tokens that the grammar forces, at no cost, and the drafter's candidates between them.

    `draft` holds the guesses taken so far. A guess that the grammar forbids ends the draft.
    """
    while True:
        text = [*tokens, *(guess.token for guess in draft)]
        for token in sampler.forced(text):
            yield Guess(token, source=GRAMMAR)
            text.append(token)
        for offered in drafter.propose(list(text), sampler):
            if (candidate := _permitted(offered, sampler, text)) is None:
                return
            taken = len(draft)
            yield candidate
            text += (guess.token for guess in draft[taken:])
            if len(draft) > taken and sampler.forced(text):
                break
        else:
            return


def _permitted(candidate: Candidate, sampler: Sampler, text: Tokens) -> Candidate | None:
    """Return a candidate for the token after `text` without what the grammar forbids, None if that is all."""
    if isinstance(candidate, Guess):
        return candidate if sampler.allows(candidate.token, text) else None
    if candidate.instead is None or sampler.allows(candidate.instead.token, text):
        return candidate
    return candidate._replace(instead=None)


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
