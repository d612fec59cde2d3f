"""The needs of editors and agents that ask a server: variables, flags, or the content of a file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

# Claude Code and Codex leave these out: they mean nothing to a local model.
CLAUDE_PLAIN = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
    "CLAUDE_CODE_EFFORT_LEVEL": "unset",
    "MAX_THINKING_TOKENS": "0",
}
CODEX_PLAIN = ("features.multi_agent=false", 'web_search="disabled"')


@dataclass(frozen=True, slots=True)
class Asked:
    """The server and the model that a tool is to use; `context` is in tokens."""

    address: str
    key: str
    model: str
    context: int

    @property
    def openai(self) -> str:
        """The address of OpenAI's API."""
        return f"{self.address}/v1"


@dataclass(frozen=True, slots=True)
class Setup:
    """How a tool is set up.

    Its `program` runs with `variables` and `arguments` alone if `runs`; else the tool reads `content` from
    `file`. A tool may be set up in either way.
    """

    program: str
    variables: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    file: str | None = None
    content: str = ""
    runs: bool = True


def aider(asked: Asked) -> Setup:
    """aider reads LiteLLM's variables; the prefix names the API."""
    variables = {"OPENAI_API_BASE": asked.openai, "OPENAI_API_KEY": asked.key}
    return Setup("aider", variables, ("--model", f"openai/{asked.model}"))


def claude(asked: Asked) -> Setup:
    """Claude Code asks for three sizes of models; it prefers an ANTHROPIC_API_KEY that is not empty."""
    models = [f"ANTHROPIC_DEFAULT_{size}_MODEL" for size in ("OPUS", "SONNET", "HAIKU")]
    return Setup(
        "claude",
        {
            "ANTHROPIC_BASE_URL": asked.address,
            "ANTHROPIC_AUTH_TOKEN": asked.key,
            "ANTHROPIC_API_KEY": "",
            **dict.fromkeys(["ANTHROPIC_MODEL", *models], asked.model),
            **CLAUDE_PLAIN,
        },
    )


def codex(asked: Asked) -> Setup:
    """Codex takes a provider as flags in TOML; it speaks the Responses API alone."""
    provider = {
        "name": "localspec",
        "base_url": asked.openai,
        "env_key": "OPENAI_API_KEY",
        "wire_api": "responses",
    }
    table = ", ".join(f"{name} = {json.dumps(value)}" for name, value in provider.items())
    flags = ('model_provider="localspec"', f"model_providers.localspec={{{table}}}", *CODEX_PLAIN)
    arguments = ("--model", asked.model, *(word for flag in flags for word in ("-c", flag)))
    return Setup("codex", {"OPENAI_API_KEY": asked.key}, arguments)


def opencode(asked: Asked) -> Setup:
    """opencode takes its file's content from a variable, too, and merges it with the user's own."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "localspec",
        "options": {"baseURL": asked.openai, "apiKey": asked.key},
        "models": {asked.model: {"name": asked.model}},
    }
    values = {"provider": {"localspec": provider}, "model": f"localspec/{asked.model}"}
    variables = {"OPENCODE_CONFIG_CONTENT": json.dumps(values)}
    file = "~/.config/opencode/opencode.json"
    return Setup("opencode", variables, file=file, content=_indented(values))


def continue_dev(asked: Asked) -> Setup:
    """Continue is an extension of editors; JSON texts are YAML, too."""
    said = {"model": asked.model, "apiBase": asked.openai, "apiKey": asked.key}
    lines = [f"    {name}: {json.dumps(value)}" for name, value in said.items()]
    head = ["name: localspec", "version: 0.0.1", "schema: v1", "models:"]
    first = [f"  - name: {json.dumps(asked.model)}", "    provider: openai"]
    content = "\n".join([*head, *first, *lines, "    roles: [chat, edit, apply]"])
    return Setup("continue", file="~/.continue/config.yaml", content=content, runs=False)


def zed(asked: Asked) -> Setup:
    """Zed reads the key from a variable called after the provider."""
    model = {
        "name": asked.model,
        "display_name": asked.model,
        "max_tokens": asked.context,
        "capabilities": {"tools": True, "images": False, "parallel_tool_calls": True},
    }
    provider = {"api_url": asked.openai, "available_models": [model]}
    values = {"language_models": {"openai_compatible": {"Local": provider}}}
    file = r"%APPDATA%\Zed\settings.json" if os.name == "nt" else "~/.config/zed/settings.json"
    variables = {"LOCAL_API_KEY": asked.key}
    return Setup("zed", variables, file=file, content=_indented(values), runs=False)


TOOLS: dict[str, Callable[[Asked], Setup]] = {
    "aider": aider,
    "claude": claude,
    "codex": codex,
    "continue": continue_dev,
    "opencode": opencode,
    "zed": zed,
}


def _indented(values: Any) -> str:
    return json.dumps(values, indent=2, ensure_ascii=False)
