"""The context of one build: texts of the target, its pass costs, prompts and folders."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from localspec import plugins
from localspec.core.contracts import Engine
from localspec.core.sampler import Sampling
from localspec.core.types import Tokens
from localspec.drafting.build_step import Artifact, TargetText
from localspec.drafting.pass_costs import pass_milliseconds, pass_seconds
from localspec.errors import ModelError, UnsupportedModel
from localspec.formats.tokenizer.chat_template import ChatTemplate
from localspec.library import Library, Manifest, Progress, StoredModel, storage
from localspec.runtime.choice import HYBRID, OFF, Choice
from localspec.runtime.generation import Runtime
from localspec.runtime.loading import forms_of
from localspec.state import probes

MAX_ANSWER = 96  # tokens of a text that the target writes
CONTEXT = 64  # tokens before the passes whose costs are measured
EVALUATED = 24  # prompts whose answers evaluate a draft; further ones train it
PLAN, TEXTS = "plan.json", "texts.json"
WEIGHTS = "weights"
MARK = "\x02here\x03"  # stands for a user's message in a template
SYSTEM_PROMPTS = (  # make a model invent messages of several kinds of user
    "",
    "The user asks for functions, programs and scripts.",
    "The user pastes code and asks for a change to it. The answer is the whole code.",
    "The user asks for data as JSON and says which fields it has.",
    "The user pastes a text of several paragraphs and asks for a summary.",
    "The user asks a question of arithmetic, algebra or logic.",
    "The user asks for a story, a letter or an essay.",
    "The user asks about everyday things, science, history or travel.",
)


def check_text(*models: StoredModel) -> None:
    """Raise UnsupportedModel for a model with eyes: builds are for models of text."""
    for model in models:
        if model.sees:
            raise UnsupportedModel(
                f"`{model.name}` is a model with eyes, of which nothing is built or exported",
                "Draft for it with `suffix`, `ngram` or a model of text of the same vocabulary",
            )


class CalibrationPrompt(NamedTuple):
    """A prompt, and the class under which its answer is reported."""

    kind: str
    text: str


class Workspace:
    """Implements BuildContext: facts about the target are measured once and kept in the work folder."""

    def __init__(
        self,
        target: StoredModel,
        source: StoredModel,
        prompts: Sequence[CalibrationPrompt],
        library: Library,
        progress: Progress,
        work_folder: Path,
        engine: str = "openvino",
    ) -> None:
        self._engine = engine
        self._models = {"target": target, "source": source}
        self._target, self._prompts = target, prompts
        self._library, self._progress, self._work_folder = library, progress, work_folder

    def say(self, line: str) -> None:
        """Show a finding to the user."""
        self._progress.say(line)

    def step(self, title: str, total: int | None = None, unit: str = "") -> AbstractContextManager[None]:
        """Return a part of the work, of `total` of a `unit` if they are known."""
        return self._progress.step(title, total, unit)

    def advance(self, count: int = 1) -> None:
        """Report that `count` more of the innermost part are done."""
        self._progress.advance(count)

    def measured_once(self, what: str, measure: Callable[[], Any]) -> Any:
        """Return the value of `measure`, kept from an earlier build of the same plan on this machine."""
        if what not in self._measurements:
            self._measurements[what] = measure()
            probes.add(self._plan_key, **{what: self._measurements[what]})
        return self._measurements[what]

    @property
    def work_folder(self) -> Path:
        """The folder of the build."""
        return self._work_folder

    def write_target_texts(self) -> None:
        """Let the target answer the prompts for evaluation, unless it has; measure its passes meanwhile."""
        file = self._work_folder / TEXTS
        if not file.is_file():
            storage.write_atomically(file, json.dumps(self._answers()))

    def target_texts(self) -> Sequence[TargetText]:
        """Return the target's greedy answers to the prompts for evaluation."""
        self.write_target_texts()
        return self._texts

    def kinds(self) -> Sequence[str]:
        """Return the class of each of `target_texts`."""
        return [prompt.kind for prompt in self._prompts[:EVALUATED]]

    def target_pass_seconds(self) -> Sequence[float]:
        """Return the seconds of the target's passes over 1, 2, ... 16 tokens."""
        return pass_seconds(self._target_pass_milliseconds())

    def weights(self, of: str) -> Path:
        """Return the file or folder of the `target` or the `source`; raises UnsupportedModel for none."""
        return self._models[of].path_for("torch", ("safetensors", "gguf"))

    def stop_tokens(self) -> Sequence[int]:
        """Return the tokens that end an answer of the target."""
        return self._target.stop_tokens()

    def training_prompts(self) -> Sequence[Tokens]:
        """Return the prompts after those for evaluation, none if the user gave no more."""
        return [
            self._target.encode_chat([{"role": "user", "content": prompt.text}])
            for prompt in self._prompts[EVALUATED:]
        ]

    def chat_wrappers(self) -> Sequence[tuple[Tokens, Tokens]]:
        """Return the tokens around a user's first message, for several kinds of user."""
        return chat_wrappers(self._target)

    def runtime(self, draft: str) -> Runtime:
        """Load the target in the engine that the build is for."""
        choice, name = Choice(engine=self._engine, draft=draft), self._library.reference(self._target)
        with self.step(f"Loading {self._target.name}"):
            return Runtime.load(name, choice, self._library, self._progress)

    def engine(self, model: StoredModel) -> Engine:
        """Load a model in the engine that the build is for."""
        spec = plugins.parse("engines", self._engine)
        engine: Engine = spec.make(model.path_for(spec.name, forms_of(spec)))
        return engine

    def engine_of(self, artifact: Artifact) -> Engine:
        """Load an artifact in the engine that the build is for."""
        weights = str(artifact.facts.get(WEIGHTS, ""))
        return self.engine(StoredModel("", artifact.folder, Manifest(name="", source="", weights=weights)))

    @cached_property
    def _plan_key(self) -> str:
        return probes.key((self._work_folder / PLAN).read_text("utf-8"))

    @cached_property
    def _measurements(self) -> dict[str, Any]:
        if kept := probes.read(self._plan_key):
            self.say("Using the pass costs of an earlier build of this plan")
        return kept

    @cached_property
    def _texts(self) -> list[TargetText]:
        return [TargetText(*text) for text in json.loads((self._work_folder / TEXTS).read_text("utf-8"))]

    def _target_pass_milliseconds(self, runtime: Runtime | None = None) -> dict[str, float]:
        """Return the cost of the target's passes, measured in `runtime` or, if that is None, in a new one."""

        def measure() -> dict[str, float]:
            loaded = runtime or self.runtime(OFF)
            with self.step("Measuring the cost of passes"):
                return pass_milliseconds(loaded.engine, CONTEXT)

        milliseconds: dict[str, float] = self.measured_once("passes", measure)
        return milliseconds

    def _answers(self) -> Sequence[tuple[Tokens, Tokens]]:
        """Let the target answer the prompts, and measure its passes while it is loaded."""
        runtime, texts = self.runtime(HYBRID), []  # a draft model would take memory
        prompts = self._prompts[:EVALUATED]
        with self._progress.step(f"{self._target.name} answers prompts", len(prompts), "prompt"):
            for prompt in prompts:
                tokens = runtime.question(prompt.text)
                answer, steps = runtime.answer(tokens, sampling=Sampling(), max_tokens=MAX_ANSWER)
                for _ in steps:
                    pass
                texts.append((tokens, answer.token_ids))
                self._progress.advance()
        self._target_pass_milliseconds(runtime)
        return texts


def chat_wrappers(model: StoredModel) -> list[tuple[list[int], list[int]]]:
    """Return the tokens before and after a user's first message, for each of SYSTEM_PROMPTS.

    The tokens before make the model invent a message, those after make it answer. A model without a chat
    template gets its first tokens and nothing.
    """
    template, tokenizer = model.template(), model.tokenizer()
    if template is None:
        return [(model.first_tokens() or model.stop_tokens()[:1], [])]

    def encode(text: str) -> list[int]:
        tokens: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return tokens

    after = encode(_around_message(template, "")[1])
    wrappers = []
    for prompt in SYSTEM_PROMPTS:
        with suppress(ModelError):  # a template without system messages
            wrappers.append((encode(_around_message(template, prompt)[0]), after))
    return wrappers


def _around_message(template: ChatTemplate, system: str) -> tuple[str, str]:
    """Return what a template puts before and after a user's message."""
    messages = [{"role": "system", "content": system}] if system else []
    before, _, after = template.render([*messages, {"role": "user", "content": MARK}]).partition(MARK)
    return before, after
