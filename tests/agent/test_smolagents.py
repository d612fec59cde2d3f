"""A localspec model in the smolagents library: its agents, its structured answers, its stop sequences."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import smolagents

import models
from localspec.agent import smolagents_model
from localspec.agent.events import FinishedEvent, ToolResultEvent
from localspec.agent.loop import Agent
from localspec.agent.permission import Permission
from localspec.library import Library, Silent
from localspec.runtime.choice import Choice
from localspec.runtime.generation import Runtime
from localspec.tools import Tool, tool


class Shout(smolagents.Tool):
    """Shouts."""

    name = "shout"
    description = "Say a text loudly."
    inputs = {"text": {"type": "string", "description": "what to say"}}
    output_type = "string"

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def forward(self, text: str) -> str:
        self.heard.append(text)
        return text.upper()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    found = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALSPEC_HOME", str(found))
        Library().resolve(str(models.smollm2_gguf()), Silent())
        yield found
    shutil.rmtree(found)


@pytest.fixture(scope="module")
def model(home: Path) -> Any:
    return smolagents_model(models.SMALL, temperature=0, max_tokens=40, seed=1)


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": text}]}]


def test_a_plain_answer(model: Any) -> None:
    found = model.generate(said("What is the capital of France?"))
    assert "Paris" in found.content
    assert found.tool_calls is None
    assert found.token_usage.output_tokens == len(found.raw.token_ids) <= 40
    assert found.token_usage.input_tokens > 5
    assert isinstance(model, smolagents.Model)
    assert model.runtime.prompt_cache.limit == 2_000_000_000


def test_an_answer_ends_before_a_stop_sequence(model: Any) -> None:
    whole = model.generate(said("What is the capital of France?")).content
    cut = model.generate(said("What is the capital of France?"), stop_sequences=["Paris"]).content
    assert cut == whole[: whole.index("Paris")]


def test_an_answer_of_a_schema(model: Any) -> None:
    shape = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "size": {"enum": ["small", "large"]}},
        "required": ["city", "size"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"schema": shape, "name": "place", "strict": True}}
    found = json.loads(model.generate(said("Describe Paris"), response_format=form).content)
    assert found.keys() == {"city", "size"}
    assert found["size"] in ("small", "large")


def test_a_call_of_a_tool(model: Any) -> None:
    found = model.generate(said("Say hello loudly"), tools_to_call_from=[Shout()])
    assert [call.function.name for call in found.tool_calls] == ["shout"]
    assert found.tool_calls[0].function.arguments.keys() == {"text"}


def test_a_smolagents_agent_calls_tools(model: Any) -> None:
    shout = Shout()
    agent = smolagents.ToolCallingAgent(tools=[shout], model=model, max_steps=1, verbosity_level=0)
    agent.prompt_templates["system_prompt"] = "Answer with the call that you are told."
    agent.run('Answer with exactly this call: {"name": "shout", "arguments": {"text": "hello"}}')
    assert shout.heard == ["hello"]


def test_the_agent_reads_errors_and_keeps_its_conversation(home: Path) -> None:
    def leave(code: int) -> str:
        """Leave."""
        raise SystemExit(code)

    def list_names(folder: str) -> str:
        """List names."""
        return "\udcff" + "x" * 100_000

    runtime = Runtime.load(models.SMALL, Choice(), Library(), Silent())
    tools: list[Tool] = [tool(leave), tool(list_names)]
    agent = Agent(runtime, tools, Permission(), system="Do as told.", max_steps=1, max_tokens=60, seed=1)
    events = list(agent.run('Answer with exactly this call: {"name": "leave", "arguments": {"code": 3}}'))
    results = [one for one in events if isinstance(one, ToolResultEvent)]
    assert [(one.text, one.failed) for one in results] == [("error: SystemExit: 3", True)]
    assert isinstance(events[-1], FinishedEvent)
    events = list(
        agent.run('Answer with exactly this call: {"name": "list_names", "arguments": {"folder": "."}}')
    )
    results = [one for one in events if isinstance(one, ToolResultEvent)]
    assert results[0].text.startswith("\ufffdx")
    assert len(results[0].text) < 20_000
    assert [one["role"] for one in agent.messages] == ["system", *["user", "assistant", "tool"] * 2]
