"""Time the second turn of a chat with a long text before it: it reads only what is new.

    python tests/perf/turns.py MODEL [--tokens N]

Prints what each turn's prompt holds, how much of it the cache held, and the seconds until the first token.
"""

from __future__ import annotations

import argparse

from localspec.chat import Chat
from localspec.cli.progress import Terminal
from localspec.core.sampler import Sampling
from localspec.library import Library
from localspec.runtime.choice import Choice
from localspec.runtime.generation import Runtime

LINE = "In the year {year} the harbour of the town had {ships} ships and {captains} captains.\n"


def main() -> None:
    """Ask twice."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=4000, help="of the text before the second turn")
    options = parser.parse_args()
    with Terminal() as progress:
        runtime = Runtime.load(options.model, Choice(), Library(), progress)
    text, year = "", 1500
    while len(runtime.tokenizer.encode(text).ids) < options.tokens:
        text += "".join(LINE.format(year=year + at, ships=at * 7 % 90, captains=at % 40) for at in range(20))
        year += 20
    chat = Chat(runtime, sampling=Sampling(), max_tokens=24)
    for question in (f"{text}\nHow many ships were there in 1503?", "And in 1510?"):
        answer, steps = chat.ask(question)
        reused = chat.usage().reused
        for _ in steps:
            pass
        print(
            f"{answer.prompt_tokens} tokens, {reused} of them in the cache, read in"
            f" {answer.prompt_seconds:.2f} s: {answer.text!r}"
        )


if __name__ == "__main__":
    main()
