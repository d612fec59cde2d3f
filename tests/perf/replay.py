"""Replay answers that bench recorded through drafters and draft-length policies, without their target.

    python tests/perf/replay.py REPORT.json ... [--all] [--draft SPEC] [--model NAME] [--half tuned|held-out]
        [--draft-length SPEC] [--each]

REPORT is a report of `localspec bench` with its runs. A guess is accepted if the plain answer has it. Passes
cost what the report measured for 1, 2, 4, 8 and 16 tokens, guesses of the draft model GUESS of a pass and
READ for each further token that it has to read, and other guesses what they take. Without noise, two ways
of drafting can be told apart. The draft model really runs; REPORT.NAME.guesses keeps what it said, so
the next replay does not load it.

`--all` compares the policy with the best fixed draft length of each text, known in hindsight, and with an
oracle that knows which guesses stand. Every second prompt of a suite is for choosing constants ("tuned"), the
others for reporting ("held-out").
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import NamedTuple

import numpy as np

from localspec import plugins
from localspec.bench import suites
from localspec.bench.runner import encoded
from localspec.core.contracts import DraftLengthPolicy, DraftModel, Engine, Session
from localspec.core.cursor import Cursor
from localspec.core.decode import make_draft
from localspec.core.sampler import Sampler, Sampling
from localspec.core.types import Candidate, Guess, Logits, Step, Tokens, Verdict
from localspec.library import Library

GUESS = 0.4  # of a pass: what a guess of the draft model is said to cost
READ = 0.05  # of a pass: what a token is said to cost that the draft model had missed
FIXED = (0, 1, 2, 3, 4, 6, 8, 12, 16)  # draft lengths to choose from in hindsight
NOISE = 997  # tokens that stand for what the target says after a rejected guess, which no report keeps
MODEL = ("draft_model", "")  # the names of a draft model's guesses


class Text(NamedTuple):
    """A prompt and the plain answer to it, and what passes over 1, 2, ... tokens cost, in seconds."""

    name: str
    kind: str
    prompt: list[int]
    answer: list[int]
    curve: list[float]


class Recorded(Engine):
    """A draft model whose most likely tokens are kept in a file; it runs for the others."""

    def __init__(self, name: str, file: Path) -> None:
        model = Library().find(name)
        assert model is not None, name
        self._folder, self._file = model.folder, file
        self.vocab = json.loads((model.folder / "config.json").read_text("utf-8"))["vocab_size"]
        self.context = 1 << 20
        self._known = {}
        if file.is_file():
            self._known = {int(key): said for key, said in json.loads(file.read_text("utf-8")).items()}
        self._cursor: Cursor | None = None

    def session(self) -> Session:
        return RecordedSession(self)

    def said(self, text: Tokens) -> tuple[int, float]:
        """Return the most likely token after a text, and its probability."""
        key = hash(tuple(text))
        if key not in self._known:
            if self._cursor is None:
                self._cursor = Cursor(plugins.parse("engines", "openvino").make(self._folder).session())
            row = self._cursor.read(list(text))[0, : self.vocab]
            token = int(row.argmax())
            self._known[key] = (token, float(1 / np.exp(row - row[token]).sum()))
        return self._known[key]

    def keep(self) -> None:
        self._file.write_text(json.dumps(self._known), "utf-8")


class RecordedSession(Session):
    """A text in a recorded draft model; the logits tell its most likely token and the probability of that."""

    def __init__(self, engine: Recorded) -> None:
        self._engine = engine
        self._text: list[int] = []

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        self._text += tokens
        logits = np.full((rows, self._engine.vocab), -np.inf, np.float32)
        if rows:
            token, share = self._engine.said(self._text)
            others = (token + np.arange(1, 1000)) % self._engine.vocab
            logits[-1, others] = np.log(max(1 / share - 1, 1e-9) / len(others))
            logits[-1, token] = 0.0
        return logits

    def rewind(self, length: int) -> int:
        del self._text[length:]
        return length


class Oracle(DraftLengthPolicy):
    """Takes every guess that stands and pays, and no other; `text` is told before each answer."""

    def __init__(self, engine: Recorded | None) -> None:
        self._engine = engine
        self.models = True  # may the draft model guess
        self.text: Text | None = None
        self.at = 0

    def wants_more(self, draft: Sequence[Guess], candidate: Candidate) -> bool:
        assert self.text is not None
        at = self.at + len(draft)
        if len(draft) >= 16 or at >= len(self.text.answer):
            return False
        right = self.text.answer[at]
        one = self.text.curve[0]
        wider = self.text.curve[len(draft) + 1] - self.text.curve[len(draft)]
        if isinstance(candidate, Guess):
            return candidate.token == right and wider < one
        if not self.models or self._engine is None:
            return False
        if candidate.instead is not None and candidate.instead.token == right:
            return False
        said = self._engine.said([*self.text.prompt, *self.text.answer[:at]])[0]
        return said == right and GUESS * one + wider < one


class Replayed:
    """A drafter and a draft-length policy that answer one recorded text after another."""

    def __init__(self, draft: str, policy: DraftLengthPolicy, engine: Recorded | None) -> None:
        given = [DraftModel(engine, engine.vocab)] if engine else []
        self.drafter = plugins.parse("drafters", draft).make(None, *given)
        self.engine = engine
        self.policy = policy

    def answer(self, text: Text) -> float:
        """Return the speed-up over one token per pass."""
        written, done, seconds = list(text.prompt), 0, 0.0
        sampler, answer = Sampler(Sampling()), text.answer
        self.drafter.begin(text.prompt)
        self.policy.begin(text.prompt)
        while done < len(answer):
            if isinstance(self.policy, Oracle):
                self.policy.text, self.policy.at = text, done
            limit = len(answer) - done - 1
            draft, costs, proposals = make_draft(written, self.drafter, self.policy, sampler, limit)
            if self.engine:
                behind = (proposal.behind for proposal in proposals if proposal.behind and proposal.taken)
                costs = [
                    (GUESS + READ * (next(behind) - 1)) * text.curve[0] if guess.source in MODEL else cost
                    for guess, cost in zip(draft, costs, strict=True)
                ]
            accepted = 0
            while accepted < len(draft) and draft[accepted].token == answer[done + accepted]:
                accepted += 1
            token = answer[done + accepted]
            whole = written + [guess.token for guess in draft]
            logits = np.zeros((len(draft) + 1, NOISE), np.float32)
            logits[range(len(logits)), np.arange(len(whole) - len(draft), len(whole) + 1) * 31 % NOISE] = 1.0
            self.drafter.observe(whole, logits, Verdict(accepted, token))
            tokens = (*answer[done : done + accepted], token)
            cost = text.curve[len(draft)]
            seconds += cost + sum(costs)
            done += len(tokens)
            finish = "stop" if done == len(answer) else None
            step = Step(
                tokens, len(draft), accepted, sum(costs), cost, "", finish, tuple(draft), tuple(costs)
            )
            self.policy.learn(replace(step, proposals=tuple(proposals)))
            written += tokens
        self.policy.end()
        self.drafter.end()
        return len(answer) * text.curve[0] / seconds


def texts_of(path: Path, half: str) -> list[Text]:
    """Return the plain answers of a report, those of one half or all."""
    report = json.loads(path.read_text("utf-8"))
    model = Library().find(report["model"]["name"])
    assert model is not None
    known = {(one.suite, one.name): one for name in suites.names() for one in suites.load(name)}
    order: dict[str, list[str]] = defaultdict(list)
    measured = report["pass_milliseconds"]["64"]
    costs = [cost / 1000 for _, cost in sorted((int(width), cost) for width, cost in measured.items())]
    curve = list(np.interp(range(1, 18), (1, 2, 4, 8, 16), costs))
    curve[16] = 2 * curve[15] - curve[14]
    found, said = [], {}
    for run in report["runs"]:
        if run["backend"] != "plain" or run["repeat"]:
            continue
        prompt = known[run["suite"], run["prompt"]]
        if run["turn"]:  # the turns before it are not in the report as texts
            continue
        names = order[run["suite"]]
        names.append(run["prompt"])
        if half and (half == "tuned") != bool(len(names) % 2):
            continue
        tokens = encoded(model, prompt.turns[:1], [], prompt.system)
        if len(run["token_ids"]) > 8 and said.setdefault(tuple(tokens), True):
            said[tuple(tokens)] = False
            found.append(Text(run["prompt"], run["kind"], tokens, run["token_ids"], curve))
    return found


def replay(options: argparse.Namespace, path: Path, way: str, engine: Recorded | None) -> list[float]:
    """Return the speed-up of each text of a report."""
    texts = texts_of(path, options.half)
    if way == "best fixed":
        tried = [replay(options, path, f"fixed:tokens={length}", engine) for length in FIXED]
        return [max(speeds) for speeds in zip(*tried, strict=True)]
    if way == "oracle":
        oracle = Oracle(engine)
        ways = [Replayed(options.draft, oracle, engine), Replayed(options.draft, oracle, engine)]
        speeds = []
        for text in texts:
            of_text = []
            for oracle.models, one in zip((True, False), ways, strict=True):
                of_text.append(one.answer(text))
            speeds.append(max(of_text))
        return speeds
    replayed = Replayed(options.draft, plugins.parse("draft_length", way).make(), engine)
    return [replayed.answer(text) for text in texts]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reports", type=Path, nargs="+")
    parser.add_argument("--draft", default="hybrid")
    parser.add_argument("--model", help="a draft model, which really runs")
    parser.add_argument("--draft-length", default="adaptive")
    parser.add_argument("--half", choices=("tuned", "held-out"), default="")
    parser.add_argument("--all", action="store_true", help="compare with fixed lengths and with an oracle")
    parser.add_argument("--each", action="store_true", help="a line for each prompt")
    options = parser.parse_args()
    ways = [options.draft_length, *(["best fixed", "oracle"] if options.all else [])]
    found: dict[str, list[float]] = {way: [] for way in ways}
    texts: list[Text] = []
    for path in options.reports:
        engine = None
        if options.model:
            engine = Recorded(options.model, path.with_suffix(f".{options.model}.guesses"))
        texts += texts_of(path, options.half)
        for way in ways:
            found[way] += replay(options, path, way, engine)
            if engine:
                engine.keep()
    if options.each:
        for at, text in enumerate(texts):
            speeds = "".join(f"{found[way][at]:12.3f}" for way in ways)
            print(f"{text.kind:12} {text.name:18} {speeds}")
    kinds = sorted({text.kind for text in texts})
    print(f"{'':12}" + "".join(f"{way:>16}" for way in ways))
    for kind in [*kinds, "all"]:
        cells = []
        for way in ways:
            speeds = [one for one, text in zip(found[way], texts, strict=True) if kind in (text.kind, "all")]
            cells.append(f"{geometric(speeds):9.3f} ({min(speeds):.2f})")
        print(f"{kind:12}" + "".join(f"{cell:>16}" for cell in cells))
    print(f"{len(texts)} texts; the worst of each kind in brackets")


def geometric(values: list[float]) -> float:
    return exp(sum(map(log, values)) / len(values))


if __name__ == "__main__":
    main()
