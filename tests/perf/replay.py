"""Replay texts that bench recorded through a drafter and a draft-length policy, without a model.

    python tests/perf/replay.py REPORT.json [--draft SPEC] [--model NAME]
        [--draft-length SPEC] [--costs 88,95]

REPORT is a report of `localspec bench` with its runs. A guess stands when it is what the plain answer says;
passes cost what `--costs` says for 1, 2, 4, 8 and 16 tokens, those of a draft model GUESS of one and what it
has missed READ of one a token, other guesses what they take. There is hardly any noise, so two ways of
guessing can be told apart.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

from localspec import plugins
from localspec.bench import suites
from localspec.bench.runner import encoded
from localspec.core.decode import guesses
from localspec.core.sampler import Sampler, Sampling
from localspec.core.types import LazyGuess, Step, Verdict
from localspec.library import Library

WIDTHS = (1, 2, 4, 8, 16)
GUESS = 0.47  # of a pass: what a guess of the draft model is said to cost
READ = 0.06  # of a pass: what a token is said to cost that the draft model had missed


class Watched:
    """A draft-length policy that notes how much the offers that it takes have missed."""

    def __init__(self, draft_length: Any) -> None:
        self._lookahead = draft_length
        self.learn = draft_length.learn
        self.behind: list[int] = []

    def wants_more(self, draft: Any, step: Any) -> bool:
        wanted: bool = self._lookahead.wants_more(draft, step)
        if wanted and isinstance(step, LazyGuess):
            self.behind.append(step.behind)
        return wanted


class Replayed:
    """A drafter and a draft-length policy that answer one recorded text after another."""

    def __init__(self, draft: str, draft_length: str, costs: list[float], engine: Any = None) -> None:
        given = [engine, engine.vocab] if engine else []
        self.drafter = plugins.parse("drafters", draft).make(None, *given)
        self.engine = engine
        self.draft_length = Watched(plugins.parse("draft_length", draft_length).make())
        self.curve = np.interp(range(300), WIDTHS, [cost / 1000 for cost in costs])
        slope = self.curve[16] - self.curve[8]
        self.curve[17:] = self.curve[16] + slope / 8 * np.arange(1, 284)

    def answer(self, prompt: list[int], answer: list[int]) -> tuple[float, list[int], int]:
        """Return the speed-up over one token a pass, the draft_lengths, and how many guesses stood."""
        text, done, seconds, stood = list(prompt), 0, 0.0, 0
        draft_lengths, sampler = [], Sampler(Sampling())
        while done < len(answer):
            self.draft_length.behind = []
            draft, costs = guesses(text, self.drafter, self.draft_length, sampler, len(answer) - done - 1)
            if self.engine:
                behind = iter(self.draft_length.behind)
                costs = tuple(
                    (GUESS + READ * (next(behind) - 1)) * float(self.curve[1])
                    if guess.source in ("model", "")
                    else cost
                    for guess, cost in zip(draft, costs, strict=True)
                )
            accepted = 0
            while accepted < len(draft) and draft[accepted].token == answer[done + accepted]:
                accepted += 1
            token = answer[done + accepted]
            whole = text + [guess.token for guess in draft]
            self.drafter.observe(whole, np.zeros((len(draft) + 1, 1), np.float32), Verdict(accepted, token))
            tokens = (*answer[done : done + accepted], token)
            cost = float(self.curve[len(draft) + 1])
            seconds += cost + sum(costs)
            done += len(tokens)
            finish = "stop" if done == len(answer) else None
            self.draft_length.learn(
                Step(tokens, len(draft), accepted, sum(costs), cost, "", finish, tuple(draft), costs)
            )
            text += tokens
            draft_lengths.append(len(draft))
            stood += accepted
        return len(answer) * float(self.curve[1]) / seconds, draft_lengths, stood


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", type=Path)
    parser.add_argument("--draft", default="hybrid")
    parser.add_argument("--model", help="a draft model, which really runs")
    parser.add_argument("--draft-length", default="adaptive")
    parser.add_argument("--costs", default="88,95,114,137,159")
    parser.add_argument("--each", action="store_true", help="a line for each prompt")
    options = parser.parse_args()
    report = json.loads(options.report.read_text("utf-8"))
    model = Library().find(report["model"]["name"])
    assert model is not None
    engine = None
    if options.model:
        draft = Library().find(options.model)
        assert draft is not None
        engine = plugins.parse("engines", "openvino").make(draft.folder)
    costs = [float(cost) for cost in options.costs.split(",")]
    replayed = Replayed(options.draft, options.draft_length, costs, engine)
    found = defaultdict(list)
    known = {(one.suite, one.name): one for name in suites.names() for one in suites.load(name)}
    for run in report["runs"]:
        if run["backend"] != "plain" or run["turn"] or run["repeat"]:
            continue
        prompt = known[run["suite"], run["prompt"]]
        tokens = encoded(model, prompt.turns[:1], [], prompt.system)
        speed, draft_lengths, stood = replayed.answer(tokens, run["token_ids"])
        found[run["kind"]].append(speed)
        if options.each:
            print(f"{run['kind']:12} {run['prompt']:18} {speed:.2f}  {stood} of {sum(draft_lengths)} stood")
    for kind, speeds in found.items():
        print(f"{kind:12} {geometric(speeds):.2f}  worst {min(speeds):.2f}")
    every = [speed for speeds in found.values() for speed in speeds]
    print(f"{'all':12} {geometric(every):.3f}  worst {min(every):.2f}")


def geometric(values: list[float]) -> float:
    return exp(sum(map(log, values)) / len(values))


if __name__ == "__main__":
    main()
