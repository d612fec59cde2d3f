"""Replay texts that bench recorded through a drafter and a draft-length policy, without a model.

    python tests/perf/replay.py REPORT.json [--draft SPEC] [--model NAME]
        [--draft-length SPEC] [--costs 88,95]

REPORT is a report of `localspec bench` with its runs. A guess is accepted if the plain answer has it;
passes cost what `--costs` says for 1, 2, 4, 8 and 16 tokens, those of a draft model GUESS of one and a token
that it missed READ of one, and other guesses what they take. Without noise, two ways of drafting can be told
apart.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

from localspec import plugins
from localspec.bench import suites
from localspec.bench.runner import encoded
from localspec.core.contracts import DraftModel
from localspec.core.decode import make_draft
from localspec.core.sampler import Sampler, Sampling
from localspec.core.types import Step, Verdict
from localspec.library import Library

WIDTHS = (1, 2, 4, 8, 16)
GUESS = 0.47  # of a pass: what a guess of the draft model is said to cost
READ = 0.06  # of a pass: what a token is said to cost that the draft model had missed


class Replayed:
    """A drafter and a draft-length policy that answer one recorded text after another."""

    def __init__(self, draft: str, draft_length: str, costs: list[float], engine: Any = None) -> None:
        given = [DraftModel(engine, engine.vocab)] if engine else []
        self.drafter = plugins.parse("drafters", draft).make(None, *given)
        self.engine = engine
        self.policy = plugins.parse("draft_length", draft_length).make()
        self.curve = np.interp(range(300), WIDTHS, [cost / 1000 for cost in costs])
        slope = self.curve[16] - self.curve[8]
        self.curve[17:] = self.curve[16] + slope / 8 * np.arange(1, 284)

    def answer(self, prompt: list[int], answer: list[int]) -> tuple[float, list[int], int]:
        """Return the speed-up over one token per pass, the draft lengths, and the accepted guesses."""
        text, done, seconds, stood = list(prompt), 0, 0.0, 0
        draft_lengths, sampler = [], Sampler(Sampling())
        self.drafter.begin(prompt)
        self.policy.begin(prompt)
        while done < len(answer):
            draft, costs, proposals = make_draft(
                text, self.drafter, self.policy, sampler, len(answer) - done - 1
            )
            if self.engine:
                behind = (proposal.behind for proposal in proposals if proposal.behind and proposal.taken)
                costs = [
                    (GUESS + READ * (next(behind) - 1)) * float(self.curve[1])
                    if guess.source in ("draft_model", "")
                    else cost
                    for guess, cost in zip(draft, costs, strict=True)
                ]
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
            step = Step(
                tokens, len(draft), accepted, sum(costs), cost, "", finish, tuple(draft), tuple(costs)
            )
            self.policy.learn(replace(step, proposals=tuple(proposals)))
            text += tokens
            draft_lengths.append(len(draft))
            stood += accepted
        self.policy.end()
        self.drafter.end()
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
