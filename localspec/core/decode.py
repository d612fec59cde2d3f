"""The loop: guess, check, settle. Plain decoding is this loop with an empty draft."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

from localspec.core.contracts import Decoding, Drafter, DraftLengthPolicy, Verifier
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler
from localspec.core.stop import OutputProcessor
from localspec.core.types import Guess, LazyGuess, Step, Tokens

GRAMMAR = "grammar"  # the source of guesses that a constraint forces


def decode(
    prompt: Tokens,
    target: Cursor,
    drafter: Drafter,
    draft_length: DraftLengthPolicy,
    verifier: Verifier,
    sampler: Sampler,
    processor: OutputProcessor,
) -> Iterator[Step]:
    """Yield the rounds of the answer to `prompt` until one has a finish.

    Effects: `target` holds the prompt and the answer, perhaps with rejected guesses behind. Raises what the
    engine raises. An interrupt or a closed iterator leaves every part ready for the next answer.
    """
    text = list(prompt)
    while True:
        started = perf_counter()
        draft, costs = guesses(text, drafter, draft_length, sampler, processor.room - 1)
        guessed = perf_counter()
        whole = text + [guess.token for guess in draft]
        rows = target.read(whole, len(draft) + 1)
        checked = perf_counter()
        verdict = verifier.verify(text, draft, rows, sampler)
        verified = perf_counter()
        drafter.observe(whole, rows, verdict)
        observed = perf_counter()
        processed = processor.settle([*(guess.token for guess in draft[: verdict.accepted]), verdict.token])
        text += processed.tokens
        last = Step(
            tokens=processed.tokens,
            drafted=len(draft),
            accepted=min(verdict.accepted, len(processed.tokens)),
            draft_seconds=guessed - started + observed - verified,
            target_seconds=checked - guessed,
            text=processed.text,
            finish=processed.finish,
            draft=tuple(draft),
            costs=costs,
        )
        draft_length.learn(last)
        yield last
        if processed.finish is not None:
            return


def guesses(
    tokens: Tokens, drafter: Drafter, draft_length: DraftLengthPolicy, sampler: Sampler, most: int
) -> tuple[list[Guess], tuple[float, ...]]:
    """Return a draft after `tokens` and the seconds of each guess, as long as the policy wants more.

    An offer that is refused costs nothing, and the drafter may have another guess; a guess that is refused
    ends the draft.
    """
    draft: list[Guess] = []
    costs: list[float] = []
    steps = (
        _steps_within(tokens, draft, drafter, sampler)
        if sampler.constrained
        else drafter.propose(tokens, sampler)
    )
    started = perf_counter()
    while len(draft) < most and (step := next(steps, None)) is not None:
        wanted = draft_length.wants_more(draft, step)
        if not wanted and isinstance(step, Guess):
            break
        guess = drawn(step) if wanted else None
        if guess is not None:
            draft.append(guess)
            ended = perf_counter()
            costs.append(ended - started)
            started = ended
    return draft, tuple(costs)


def _steps_within(
    tokens: Tokens, draft: list[Guess], drafter: Drafter, sampler: Sampler
) -> Iterator[Guess | LazyGuess]:
    """Yield what the constraint forces, which costs nothing, and the drafter's steps between.

    `draft` are the guesses that were taken so far. A guess that the constraint forbids ends the draft.
    """
    while True:
        text = [*tokens, *(guess.token for guess in draft)]
        for token in sampler.forced(text):
            yield Guess(token, source=GRAMMAR)
            text.append(token)
        for step in drafter.propose(list(text), sampler):
            if isinstance(step, Guess) and not sampler.allows(step.token, text):
                return
            taken = len(draft)
            yield step
            text += (guess.token for guess in draft[taken:])
            if len(draft) > taken and sampler.forced(text):
                break
        else:
            return


def drawn(step: Guess | LazyGuess) -> Guess | None:
    """Return the guess of a step; that of an offer is paid for."""
    return step if isinstance(step, Guess) else step.draw()


def run_decoding(prompt: Tokens, decoding: Decoding, processor: OutputProcessor) -> Iterator[Step]:
    """Yield the rounds of the answer to `prompt` until one has a finish; raises what the engine raises.

    A round's `target_seconds` are all that choosing its token took, however many passes that were.
    """
    text = list(prompt)
    finish = None
    while finish is None:
        started = perf_counter()
        token = decoding.choose(text)
        seconds = perf_counter() - started
        tokens, piece, finish = processor.settle([token])
        text += tokens
        yield Step(tokens, 0, 0, draft_seconds=0.0, target_seconds=seconds, text=piece, finish=finish)
