"""The Python API: load a model with its draft, then generate, stream or chat."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from localspec.errors import PromptError
from localspec.library import Library, Progress, Silent
from localspec.runtime.choice import Choice, sampling_of
from localspec.runtime.load import load as load_parts
from localspec.runtime.resolution import resolve

if TYPE_CHECKING:
    from localspec.chat import Chat, Message
    from localspec.runtime.answer import Answer, AnswerStream
    from localspec.runtime.generation import Runtime

GIGABYTE = 10**9
FOR_ANSWERS = ("localspec.chat", "jinja2.ext")  # imported while engines compile
SAMPLING = (
    *("temperature", "top_k", "top_p", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)

log = logging.getLogger("localspec")


class GenerateOptions(TypedDict, total=False):
    """Options of `generate`, `stream` and `chat`; the model's own generation config fills in the sampling.

    `temperature` 0 takes the most likely token; `top_k`, `top_p`, `min_p`, `repetition_penalty`,
    `presence_penalty` and `frequency_penalty` are as in transformers. `seed` repeats a sampled answer. `stop`
    are texts that end the answer. `json_schema` (a dict) or `grammar` (Lark or GBNF) constrains it. `system`
    is the system prompt, `think` switches a reasoning model's thinking, `raw` leaves out the chat template.
    An answer that repeats one passage without end is ended unless `loop_guard` is false.
    """

    max_new_tokens: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    stop: Sequence[str]
    json_schema: Mapping[str, Any]
    grammar: str
    system: str
    think: bool
    loop_guard: bool
    raw: bool


class LogProgress(Silent):
    """Passes messages about loading to the logger `localspec`."""

    def say(self, line: str) -> None:
        log.info(line)


class Model:
    """A loaded model with its draft. It answers one prompt at a time and keeps its KV cache between them.

    Use it as a context manager, or call `close`, to free its memory.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime: Runtime | None = runtime

    @property
    def runtime(self) -> Runtime:
        """The loaded parts; raises PromptError once the model is closed."""
        if self._runtime is None:
            raise PromptError("The model is closed", "Load it again with `localspec.load`")
        return self._runtime

    @property
    def name(self) -> str:
        """The model's name in the library."""
        return self.runtime.model.name

    @property
    def engine(self) -> str:
        """The engine with its options, such as `openvino:threads=2`."""
        return str(self.runtime.resolution.target.spec)

    @property
    def device(self) -> str:
        """The device that the model runs on."""
        return self.runtime.engine.device

    @property
    def drafter(self) -> str:
        """The drafter with its options, such as `hybrid:name=qwen2.5-coder-0.5b`."""
        return str(self.runtime.draft_spec)

    @property
    def context_length(self) -> int:
        """Maximum tokens of a prompt and its answer."""
        return self.runtime.engine.context

    def generate(self, prompt: str | Sequence[Message], **options: Unpack[GenerateOptions]) -> Answer:
        """Return the complete answer to a prompt, or to the messages of a conversation.

        Raises EmptyPrompt, BadValue for a wrong option, and ContextFull for a prompt without room for an
        answer.
        """
        return self.stream(prompt, **options).finish()

    def stream(self, prompt: str | Sequence[Message], **options: Unpack[GenerateOptions]) -> AnswerStream:
        """Return the answer as a stream of text; raises what `generate` raises."""
        conversation = self.chat(**options)
        if isinstance(prompt, str):
            return conversation.stream(prompt)
        conversation.messages += prompt
        return conversation.stream_reply()

    def chat(self, **options: Unpack[GenerateOptions]) -> Chat:
        """Return a new conversation: its `send` and `stream` answer one message after another.

        Raises BadValue for a wrong option.
        """
        from localspec.chat import Chat

        given = {name: options[name] for name in SAMPLING if name in options}  # type: ignore[literal-required]
        return Chat(
            self.runtime,
            sampling=sampling_of(self.runtime.model.sampling_defaults(), given),
            system=options.get("system"),
            raw=options.get("raw", False),
            seed=options.get("seed"),
            max_tokens=options.get("max_new_tokens"),
            stop=options.get("stop", ()),
            grammar=_constraint(options),
            thinking=options.get("think"),
            loop_guard=options.get("loop_guard", True),
        )

    def close(self) -> None:
        """Free the model's memory; the model cannot answer any more."""
        self._runtime = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _constraint(options: GenerateOptions) -> str | None:
    from localspec.output import grammar as grammars

    if "json_schema" in options:
        return grammars.from_schema(dict(options["json_schema"]), "json_schema")
    return grammars.from_text(options["grammar"], "grammar") if "grammar" in options else None


def load(
    name: str,
    *,
    draft: str = "auto",
    draft_length: str = "adaptive",
    verifier: str = "exact",
    decoding: str = "standard",
    sampler: str | None = None,
    vision_tokens: str = "",
    engine: str = "auto",
    device: str | None = None,
    threads: int | None = None,
    prompt_cache_gb: float = 2.0,
) -> Model:
    """Load a model with a draft, downloading and converting it if it is missing.

    `name` is a name in the catalogue, a GGUF file, an OpenVINO or Hugging Face folder, or `hf:OWNER/NAME`.
    The other options are those of `localspec chat`. Raises LocalspecError, the base of all errors of
    localspec, with a `hint`.
    """
    choice = Choice(
        *(engine, draft, draft_length, verifier, device, threads, decoding),
        sampler=sampler,
        vision_tokens=vision_tokens,
    )
    return load_choice(name, choice, Library(), LogProgress(), int(prompt_cache_gb * GIGABYTE))


def load_choice(
    name: str,
    choice: Choice,
    library: Library,
    progress: Progress,
    prompt_cache_bytes: int,
    modules: Iterable[str] = (),
) -> Model:
    """Load a model of `library`; a choice of only defaults may be replaced by a tuned one.

    What an answer needs, and `modules` of the caller's, are imported while engines compile. Raises
    LocalspecError.
    """
    choice = choice.or_tuned()
    choice.check()
    resolution = resolve(name, choice, library, progress)
    loaded = load_parts(resolution, meanwhile=partial(_import, *FOR_ANSWERS, *modules))
    from localspec.runtime.generation import Runtime

    return Model(Runtime(resolution, prompt_cache_bytes=prompt_cache_bytes, loaded=loaded))


def _import(*modules: str) -> None:
    for module in modules:
        import_module(module)
