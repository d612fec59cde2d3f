"""The engine that runs what OpenVINO cannot read, and the one line that says so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from random_models import saved
from said import Said

from localspec import devices
from localspec.core.sampler import Sampling
from localspec.devices import accelerators
from localspec.errors import UnsupportedModel
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph import ir
from localspec.library import Library, Silent
from localspec.library.importing import convert
from localspec.plugins import parse
from localspec.runtime.choice import Choice
from localspec.runtime.generation import Runtime
from localspec.runtime.loading import LoadSpec
from localspec.runtime.resolution import find_engine

pytestmark = pytest.mark.engines


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    return Library()


def without(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    library = replace(devices.LIBRARIES[engine], module="no_such_module")
    monkeypatch.setitem(devices.LIBRARIES, engine, library)


@pytest.fixture
def experts(tmp_path: Path) -> Path:
    """A model as Mixtral is: four feed-forward networks in each layer, two of which a token takes."""
    model, numbers = tiny.make("llama", interleaved=True), tiny.dice(1)
    for layer in range(tiny.LAYERS):
        shapes = {
            "gate": (tiny.INNER, tiny.WIDTH),
            "up": (tiny.INNER, tiny.WIDTH),
            "down": (tiny.WIDTH, tiny.INNER),
        }
        for part, shape in shapes.items():
            name = f"blk.{layer}.ffn_{part}"
            del model.stored[f"{name}.weight"], model.kinds[f"{name}.weight"]
            model.put(f"{name}_exps.weight", "F32", numbers.normal(0, 0.06, (4, *shape)).astype(np.float32))
        gate = numbers.normal(0, 0.06, (4, tiny.WIDTH)).astype(np.float32)
        model.put(f"blk.{layer}.ffn_gate_inp.weight", "F32", gate)
    return tiny.write_gguf(model, tmp_path / "experts.gguf", expert_count=4, expert_used_count=2)


def answer_of(runtime: Runtime) -> list[int]:
    answer, steps = runtime.answer(runtime.question("abc"), sampling=Sampling(), max_tokens=8)
    for _ in steps:
        pass
    return list(answer.token_ids)


def test_a_model_of_experts_runs_on_llama_cpp(experts: Path, library: Library) -> None:
    said = Said()
    runtime = Runtime.load(str(experts), Choice(draft="off", threads=2), library, said)
    assert runtime.resolution.target.spec.name == "llamacpp"
    (line,) = [line for line in said.lines if "expert_count" in line]
    assert "runs on llamacpp, because OpenVINO cannot read it: `llama.expert_count` of" in line
    assert len(answer_of(runtime)) == 8
    again = Said()
    find_engine(str(experts), Choice(threads=2), library, again)
    assert again.lines == [line]


def test_without_llama_cpp_it_is_refused_with_the_reason(
    experts: Path, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_engine(str(experts), Choice(), library, Silent())
    without(monkeypatch, "llamacpp")
    for _ in range(2):
        with pytest.raises(UnsupportedModel, match="expert_count") as caught:
            find_engine(str(experts), Choice(), library, Silent())
        assert "Download" not in str(caught.value)


@pytest.fixture
def dynamic(tmp_path: Path) -> Path:
    """A folder whose rotary positions only transformers computes."""
    folder = tmp_path / "dynamic"
    saved("llama", folder)
    convert.from_gguf(tiny.write_gguf(tiny.make("llama"), tmp_path / "words.gguf"), folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config["rope_scaling"] = {"type": "dynamic", "factor": 2.0}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


@pytest.mark.parametrize("device", [None, "CPU"])
def test_a_folder_of_other_positions_runs_on_torch(
    device: str | None, dynamic: Path, library: Library
) -> None:
    said = Said()
    runtime = Runtime.load(str(dynamic), Choice(draft="off", device=device), library, said)
    assert (runtime.resolution.target.spec.name, runtime.engine.device) == ("torch", "cpu")
    (line,) = [line for line in said.lines if "`dynamic`" in line]
    assert "runs on torch, because OpenVINO cannot read it" in line
    assert len(answer_of(runtime)) == 8


def test_such_a_folder_is_not_given_to_llama_cpp(
    dynamic: Path, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "torch")
    with pytest.raises(UnsupportedModel, match="`dynamic`"):
        find_engine(str(dynamic), Choice(), library, Silent())


def of_a_new_type(path: Path) -> Path:
    """Give a tensor of a file a type that no library knows yet."""
    name = b"blk.0.ffn_up.weight"
    data = bytearray(path.read_bytes())
    at = data.index(name) + len(name) + 4 + 2 * 8
    data[at : at + 4] = (99).to_bytes(4, "little")
    path.write_bytes(data)
    return path


def test_a_tensor_type_of_tomorrow_is_left_to_llama_cpp(library: Library, tmp_path: Path) -> None:
    path = of_a_new_type(tiny.write_gguf(tiny.make("llama", "Q8_0"), tmp_path / "new.gguf"))
    for engine in ("auto", "llamacpp"):
        spec, _, model = find_engine(str(path), Choice(engine=engine), library, Silent())
        assert spec.name == "llamacpp"
        assert model.files_in("gguf") == path
    opened = GgufFile.open(path)
    info = opened.tensors["blk.0.ffn_up.weight"]
    assert (info.kind, info.size) == ("type 99", tiny.INNER * tiny.WIDTH // 32 * 34)
    with pytest.raises(UnsupportedModel, match="`blk.0.ffn_up.weight` .* unknown tensor type 99"):
        library.resolve(str(path), Silent())
    with pytest.raises(UnsupportedModel, match="invalid ggml type 99"):
        Runtime.load(str(path), Choice(engine="llamacpp"), library, Silent())


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = devices.Device("torch", "cuda:0", "NVIDIA H100", "cuda", 80_000_000_000, 70_000_000_000)
    monkeypatch.setattr(accelerators, "has_nvidia_driver", lambda: True)
    monkeypatch.setattr(accelerators, "cuda_devices", lambda: [found])
    return found


@pytest.mark.usefixtures("card")
def test_a_card_is_not_taken_for_what_torch_cannot_read(experts: Path, library: Library) -> None:
    said = Said()
    spec, _, model = find_engine(str(experts), Choice(), library, said)
    assert spec.name == "llamacpp"
    assert model.files_in("gguf") == experts
    assert any("does not run on torch: `llama.expert_count`" in line for line in said.lines)


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """A folder with a compressed graph and nothing that it was made from."""
    folder = tmp_path / "graph"
    folder.mkdir()
    source = tiny.write_gguf(tiny.make("llama", "Q8_0", interleaved=True), tmp_path / "source.gguf")
    ir.import_weights(GgufFile.open(source), folder, Silent())
    convert.from_gguf(source, folder)
    return folder


def test_a_compressed_graph_runs_on_torch(graph: Path, library: Library) -> None:
    own = Runtime.load(str(graph), Choice(engine="openvino", draft="off"), library, Said())
    other = Runtime.load(str(graph), Choice(engine="torch:weights=int8", draft="off"), library, Said())
    assert (other.resolution.target.spec.name, other.resolution.target.path) == (
        "torch",
        own.resolution.target.path,
    )
    assert answer_of(other) == answer_of(own)
    with pytest.raises(UnsupportedModel, match="only an OpenVINO graph") as caught:
        Runtime.load(str(graph), Choice(engine="torch", draft="off"), library, Said())
    assert "torch:weights=int4" in str(caught.value.hint)


@pytest.mark.usefixtures("card")
def test_a_card_is_not_taken_for_a_graph_but_named_with_its_forms(graph: Path, library: Library) -> None:
    said = Said()
    spec, _, _ = find_engine(str(graph), Choice(), library, said)
    assert spec.name == "openvino"
    assert any("which `--engine torch:weights=int8` or" in line for line in said.lines)


def test_a_graph_is_not_made_for_torch(library: Library, tmp_path: Path) -> None:
    path = tiny.write_gguf(tiny.make("llama", "Q4_0", interleaved=True), tmp_path / "a.gguf")
    _, _, model = find_engine(str(path), Choice(engine="torch:weights=int4"), library, Silent())
    assert model.files_in("openvino") is None
    assert LoadSpec(parse("engines", "torch:weights=int4"), model).path == path
