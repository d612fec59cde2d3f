"""What the steps of one build ask for: texts of the target, its costs, its words."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from localspec import plugins
from localspec.core.contracts import Engine
from localspec.core.sampler import Sampling
from localspec.core.types import Tokens
from localspec.drafting.build_step import Artifact, Text
from localspec.drafting.pass_costs import pass_milliseconds, seconds
from localspec.errors import ModelError
from localspec.formats.tokenizer.chat_template import ChatTemplate
from localspec.library import Library, Manifest, Model, Progress, storage
from localspec.runtime.choice import HYBRID, OFF, Choice
from localspec.runtime.generation import Runtime
from localspec.state import probes

ANSWER = 96  # tokens of an answer that the target writes for calibration
CONTEXT = 64  # tokens before passes whose costs are measured
JUDGED = 24  # prompts whose answers judge a draft; what is behind them teaches it
PLAN, TEXTS = "plan.json", "texts.json"
WEIGHTS = "weights"
MARK = "\x02here\x03"  # stands for a user's words in a template
USERS = (  # what makes a model invent one kind of user's words or another's
    "",
    "The user asks for functions, programs and scripts.",
    "The user pastes code and asks for a change to it. The answer is the whole code.",
    "The user asks for data as JSON and says which fields it has.",
    "The user pastes a text of several paragraphs and asks for a summary.",
    "The user asks a question of arithmetic, algebra or logic.",
    "The user asks for a story, a letter or an essay.",
    "The user asks about everyday things, science, history or travel.",
)


class CalibrationPrompt(NamedTuple):
    """A prompt, and the class that its answer counts for."""

    kind: str
    text: str


class Workspace:
    """A build as its steps see it: what is found out about the target is found out once and kept."""

    def __init__(
        self,
        target: Model,
        source: Model,
        prompts: Sequence[CalibrationPrompt],
        library: Library,
        progress: Progress,
        kept: Path,
        engine: str = "openvino",
    ) -> None:
        self._engine = engine
        self._models = {"target": target, "source": source}
        self._target, self._prompts = target, prompts
        self._library, self._progress, self._kept = library, progress, kept

    def say(self, line: str) -> None:
        """Tell the user what was found."""
        self._progress.say(line)

    def step(self, title: str, total: int | None = None) -> None:
        """Begin a part of the work, of `total` bytes where that is known."""
        self._progress.step(title, total)

    def once(self, what: str, measure: Callable[[], Any]) -> Any:
        """Return what `measure` finds, or found in an earlier build of the same plan on this machine."""
        if what not in self._measured:
            self._measured[what] = measure()
            probes.add(self._plan, **{what: self._measured[what]})
        return self._measured[what]

    @property
    def kept(self) -> Path:
        """The folder of the build."""
        return self._kept

    def texts(self) -> Sequence[Text]:
        """Return the target's greedy answers to the prompts that judge."""
        return [Text(*found) for found in self._written]

    def kinds(self) -> Sequence[str]:
        """Return the class of each of `texts`."""
        return [asked.kind for asked in self._prompts[:JUDGED]]

    def passes(self) -> Sequence[float]:
        """Return the seconds of the target's passes over 1, 2, ... 16 tokens."""
        return seconds(self._passes())

    def weights(self, of: str) -> Path:
        """Return the file or folder of the `target` or the `source`; raises UnsupportedModel for none."""
        return self._models[of].path_for("torch", ("safetensors", "gguf"))

    def ends(self) -> Sequence[int]:
        """Return the tokens that end an answer of the target."""
        return self._target.stop_tokens()

    def prompts(self) -> Sequence[Tokens]:
        """Return the prompts behind those that judge, none where the user gave no more."""
        return [
            self._target.encode_chat([{"role": "user", "content": asked.text}])
            for asked in self._prompts[JUDGED:]
        ]

    def turns(self) -> Sequence[tuple[Tokens, Tokens]]:
        """Return what stands around the first turn of some kinds of users; see `turns`."""
        return turns(self._target)

    def runtime(self, draft: str) -> Runtime:
        """Return the target in the engine that the build is for."""
        choice = Choice(engine=self._engine, draft=draft)
        return Runtime.load(self._target.name, choice, self._library, self._progress)

    def engine(self, model: Model) -> Engine:
        """Return a model in the engine that the build is for."""
        part = plugins.parse("engines", self._engine)
        made: Engine = part.make(model.path_for(part.name, part.part.made_by.forms))
        return made

    def engine_of(self, made: Artifact) -> Engine:
        """Return what was made, in the engine that the build is for."""
        weights = str(made.facts.get(WEIGHTS, ""))
        return self.engine(Model("", made.folder, Manifest(name="", source="", weights=weights)))

    @cached_property
    def _plan(self) -> str:
        return probes.key((self._kept / PLAN).read_text("utf-8"))

    @cached_property
    def _measured(self) -> dict[str, Any]:
        if found := probes.read(self._plan):
            self.say("What passes cost is known from an earlier build of this plan")
        return found

    @cached_property
    def _written(self) -> list[tuple[list[int], list[int]]]:
        file = self._kept / TEXTS
        if not file.is_file():
            storage.write_atomically(file, json.dumps(self._answered()))
        found: list[tuple[list[int], list[int]]] = json.loads(file.read_text("utf-8"))
        return found

    def _passes(self, runtime: Runtime | None = None) -> dict[str, float]:
        """Return what the target's passes cost; it is loaded where no `runtime` is given and needed."""

        def measure() -> dict[str, float]:
            return pass_milliseconds((runtime or self.runtime(OFF)).engine, CONTEXT)

        found: dict[str, float] = self.once("passes", measure)
        return found

    def _answered(self) -> Sequence[tuple[Tokens, Tokens]]:
        """Let the target answer; measure its passes while it is there."""
        runtime, texts = self.runtime(HYBRID), []  # a draft model would take memory
        judged = self._prompts[:JUDGED]
        for number, asked in enumerate(judged, 1):
            self._progress.step(f"{self._target.name} answers prompt {number} of {len(judged)}")
            tokens = runtime.question(asked.text)
            answer, steps = runtime.answer(tokens, sampling=Sampling(), max_tokens=ANSWER)
            for _ in steps:
                pass
            texts.append((tokens, answer.token_ids))
        self._passes(runtime)
        return texts


def turns(model: Model) -> list[tuple[list[int], list[int]]]:
    """Return the tokens before and behind a user's first turn, for each kind of user.

    Before it stands what makes the model invent such a user's words; behind it what makes it answer. Where it
    has no template, a text begins and goes on.
    """
    template, tokenizer = model.template(), model.tokenizer()
    if template is None:
        return [(model.first_tokens() or model.stop_tokens()[:1], [])]

    def tokens(text: str) -> list[int]:
        found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return found

    behind = tokens(_around(template, "")[1])
    found = []
    for kind in USERS:
        with suppress(ModelError):  # a template without system messages
            found.append((tokens(_around(template, kind)[0]), behind))
    return found


def _around(template: ChatTemplate, system: str) -> tuple[str, str]:
    """Return what a template puts before and behind a user's words."""
    messages = [{"role": "system", "content": system}] if system else []
    before, _, behind = template.render([*messages, {"role": "user", "content": MARK}]).partition(MARK)
    return before, behind
