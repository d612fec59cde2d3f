"""`localspec devices` and `localspec doctor`, and chat on every engine, as real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import MODEL, Localspec

from localspec.disk import records

QUICK = ("--max-tokens", "8", "--temperature", "0", "--json")


def test_devices_are_listed_as_text_and_as_json(localspec: Localspec) -> None:
    said = localspec.run("devices")
    assert said.code == 0
    assert "chosen: openvino on CPU" in said.out
    found = json.loads(localspec.run("devices", "--json").out)
    assert found["chosen"]["engine"] == "openvino"
    assert {"openvino", "npu", "llamacpp", "torch"} == set(found["engines"])


def test_the_doctor_without_a_model_prints_versions(localspec: Localspec) -> None:
    found = json.loads(localspec.run("doctor", "--json").out)
    assert list(found) == ["versions", "machine", "findings"]
    assert found["findings"] == []
    assert found["versions"]["openvino"]


def test_the_doctor_checks_a_model_and_keeps_the_results(localspec: Localspec) -> None:
    ran = localspec.run("doctor", MODEL, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)["model"]
    assert found["sound"] is True
    assert found["rewind"] == {"lengths": [12, 300], "fault": None}
    assert [text["same"] for text in found["draft_parity"]] == [True] * 3
    assert found["cpu_parity"] is None
    assert list(found["pass_milliseconds"]) == ["64", "1024"]
    assert list(found["pass_milliseconds"]["64"]) == ["1", "2", "4", "8", "16"]
    assert found["memory"]["total"] > found["memory"]["target"] > 1e8
    kept = [records.read(path) for path in (localspec.home / "probes").glob("*.json")]
    assert {"rewind": None}.items() <= next(one for one in kept if "pass_milliseconds" in one).items()


def test_the_doctor_prints_its_results(localspec: Localspec) -> None:
    ran = localspec.run("doctor", MODEL, "--draft", f"draft_model:name={MODEL}")
    assert ran.code == 0, ran.err
    for word in ("rewind        exact", "same text", "draft token   costs", "memory"):
        assert word in ran.out
    assert ran.out.splitlines()[-1].startswith(f"OK. Drafting with `draft_model:name={MODEL}` ")


def test_the_doctor_ends_with_what_is_wrong(localspec: Localspec, tmp_path: Path) -> None:
    broken = localspec.home / "models" / "broken"
    broken.mkdir()
    try:
        ran = localspec.run("doctor")
    finally:
        broken.rmdir()
    assert ran.code == 1
    assert ran.out.splitlines()[-1] == f"Not OK: `{broken}` is damaged. localspec verify"


def test_the_doctor_leaves_nothing_of_a_file_behind(fresh: Localspec, gguf: Path) -> None:
    ran = fresh.run("doctor", str(gguf), "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["model"]["model"] == str(gguf)
    assert not fresh.home.exists()


def test_the_doctor_refuses_an_unknown_model(localspec: Localspec) -> None:
    localspec.run("doctor", "smollm2-135n").refused(1, "Unknown model", "`smollm2-135m`")


def test_an_answer_says_which_engine_and_why(localspec: Localspec) -> None:
    found = localspec.run("chat", MODEL, "Say hello.", *QUICK).values
    assert (found["engine"], found["device"]) == ("openvino", "CPU")
    assert found["engine_reason"]
    asked = localspec.run("chat", MODEL, "Say hello.", *QUICK, "--device", "CPU").values
    assert asked["engine_reason"] == "`CPU` was requested"


@pytest.mark.engines
@pytest.mark.parametrize("engine", ["openvino", "llamacpp", "torch:device=cpu", "npu:device=CPU"])
def test_chat_on_every_engine(localspec: Localspec, engine: str) -> None:
    found = localspec.run(
        "chat", MODEL, "Say hello.", *QUICK, "--engine", engine, "--draft", f"draft_model:name={MODEL}"
    ).values
    assert found["engine"] == engine
    assert found["text"].startswith("Hello")
    assert found["speculation"]["off_reason"] is None or found["speculation"]["drafted"] == 0


@pytest.mark.engines
def test_a_draft_may_run_on_another_engine(localspec: Localspec) -> None:
    found = localspec.run(
        *("chat", MODEL, "Say hello.", *QUICK, "--draft-length", "fixed:tokens=2"),
        *("--draft", f"draft_model:name={MODEL},runs=llamacpp,threads=1"),
    ).values
    assert found["engine"] == "openvino"
    assert found["speculation"]["accepted"] > 0
