"""`localspec serve --engine vllm`, with a program in vLLM's place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command import COMMAND, SECONDS, Localspec
from stand_in import StandIn

MODEL = ("Qwen/Qwen3-8B", "--engine", "vllm")
NGRAM = {"method": "ngram", "prompt_lookup_max": 8, "prompt_lookup_min": 2}


@pytest.fixture
def localspec(tmp_path: Path) -> Localspec:
    return Localspec(tmp_path / "home")


def started(localspec: Localspec, folder: Path, *arguments: str) -> dict[str, Any]:
    """Return the words after `vllm serve`, by flag; the model under ""."""
    vllm = StandIn(folder, "vllm")
    ran = localspec.run("serve", *arguments, PATH=vllm.path)
    assert ran.code == 0, ran.err
    words = vllm.started["arguments"]
    assert words[0] == "serve"
    flags = dict(zip(words[2::2], words[3::2], strict=True))
    if "--speculative-config" in flags:
        flags["--speculative-config"] = json.loads(flags["--speculative-config"])
    return {"": words[1], "key": vllm.started["environment"].get("VLLM_API_KEY"), **flags}


def test_vllm_gets_what_was_given(localspec: Localspec, tmp_path: Path) -> None:
    more = ("--tensor-parallel", "4", "--pipeline-parallel", "2", "--port", "8000")
    outside = ("--host", "0.0.0.0", "--api-key", "secret")
    assert started(localspec, tmp_path, *MODEL, *more, *outside) == {
        "": "Qwen/Qwen3-8B",
        "key": "secret",
        "--served-model-name": "Qwen/Qwen3-8B",
        "--host": "0.0.0.0",
        "--port": "8000",
        "--tensor-parallel-size": "4",
        "--pipeline-parallel-size": "2",
        "--speculative-config": NGRAM | {"num_speculative_tokens": 5},
    }


@pytest.mark.parametrize(
    ("given", "config"),
    [
        (["off"], None),
        (["ngram:longest=4"], NGRAM | {"num_speculative_tokens": 5, "prompt_lookup_max": 4}),
        (["ngram", "--draft-length", "fixed:tokens=3"], NGRAM | {"num_speculative_tokens": 3}),
        (
            ["qwen3-0.6b"],
            {"method": "draft_model", "model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 5},
        ),
        (
            ["draft_model:name=hf:Qwen/Qwen3-0.6B"],
            {"method": "draft_model", "model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 5},
        ),
    ],
)
def test_a_draft_becomes_vllm_s(localspec: Localspec, tmp_path: Path, given: list[str], config: Any) -> None:
    assert started(localspec, tmp_path, *MODEL, "--draft", *given).get("--speculative-config") == config


def test_a_model_is_a_folder_or_a_repository(localspec: Localspec, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "config.json").write_text("{}")
    own = str(tmp_path / "own")
    assert started(localspec, tmp_path, own, "--engine", "vllm")[""] == own
    found = started(localspec, tmp_path, "qwen3-8b", "--engine", "vllm")
    assert (found[""], found["--served-model-name"]) == ("Qwen/Qwen3-8B", "qwen3-8b")
    localspec.run("serve", "qwen3-9b", "--engine", "vllm").refused(1, "qwen3-9b", "`qwen3-8b`")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((*MODEL, "--queue", "3"), "--queue"),
        ((*MODEL, "--keep-alive", "3"), "--keep-alive"),
        ((*MODEL, "--device", "GPU"), "--device"),
        ((*MODEL, "--threads", "2"), "--threads"),
        ((*MODEL, "--log", "json"), "--log"),
        ((*MODEL, "--port", "0"), "--port"),
        ((*MODEL, "--draft", "suffix"), "suffix"),
        ((*MODEL, "--draft", "draft_model:name=a,device=GPU"), "device"),
        ((*MODEL, "--draft-length", "confidence"), "confidence"),
        (("a", *MODEL), "one model"),
        (("--engine", "vllm"), "one model"),
        ((*MODEL, "--host", "0.0.0.0"), "--api-key"),
        (("a", "--tensor-parallel", "2"), "--tensor-parallel"),
        (("a", "--pipeline-parallel", "2", "--engine", "toy"), "--pipeline-parallel"),
    ],
)
def test_what_vllm_would_not_get_is_refused(
    localspec: Localspec, tmp_path: Path, arguments: tuple[str, ...], named: str
) -> None:
    localspec.run("serve", *arguments, PATH=StandIn(tmp_path, "vllm").path).refused(2, named)


def test_vllm_that_is_not_there_is_told(localspec: Localspec, tmp_path: Path) -> None:
    localspec.run("serve", *MODEL, PATH=str(tmp_path)).refused(1, "`vllm`", "pip install vllm")


def test_its_exit_code_is_ours(localspec: Localspec, tmp_path: Path) -> None:
    vllm = StandIn(tmp_path, "vllm", code=7)
    assert localspec.run("serve", *MODEL, PATH=vllm.path).code == 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(localspec: Localspec, tmp_path: Path, number: int) -> None:
    vllm = StandIn(tmp_path, "vllm", waits=True)
    environment = localspec.environment(PATH=vllm.path)
    process = subprocess.Popen([*COMMAND, "serve", *MODEL], stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == b"ready\n"
        os.kill(process.pid, number)
        assert process.wait(SECONDS) in (-number, 1)  # Python reports an interrupt with 1
