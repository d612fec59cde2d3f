from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import NetworkError, UnknownModel, UnsupportedModel, UsageError
from localspec.library import hub as hub_module
from localspec.library import resume
from localspec.library.sources import Source

BESIDE = {"config.json": b"{}", "tokenizer.json": b"{}", "README.md": b"# hello"}
OPENVINO = {"openvino_model.xml": b"<net/>", "openvino_model.bin": bytes(5000), **BESIDE}


def fetch(text: str, said: Any) -> Any:
    return hub_module.fetch(Source.parse(text), said)


def test_openvino_files_are_preferred_and_the_rest_stays(hub: Any, said: Any) -> None:
    hub.repositories["o/m"] = {**OPENVINO, "model.safetensors": bytes(9), "m-Q4_K_M.gguf": bytes(9)}
    found = fetch("hf:o/m", said)
    assert found.kind == "openvino"
    assert sorted(path.name for path in found.path.iterdir()) == [
        "config.json",
        "openvino_model.bin",
        "openvino_model.xml",
        "tokenizer.json",
    ]
    assert (found.path / "openvino_model.bin").read_bytes() == bytes(5000)
    assert str(found.source) == "hf:o/m@0123456789abcdef0123456789abcdef01234567"


def test_what_is_cached_is_not_fetched_again(hub: Any, said: Any) -> None:
    hub.repositories["o/m"] = OPENVINO
    first = fetch("hf:o/m", said)
    before = len(hub.downloads())
    assert fetch("hf:o/m", said).path == first.path
    assert len(hub.downloads()) == before
    assert said.steps == ["Fetching o/m"]


@pytest.mark.parametrize("text", ["hf:o/m", "hf:o/m:Q4_K_M", "hf:o/m:q4_k_m", "hf:o/m:m.Q4_K_M.gguf"])
def test_a_gguf_is_chosen_by_quantization_or_name(hub: Any, said: Any, text: str) -> None:
    hub.repositories["o/m"] = {"m.Q4_K_M.gguf": b"four", "m.Q8_0.gguf": b"eight", "mmproj-f16.gguf": b"eyes"}
    found = fetch(text, said)
    assert (found.kind, found.path.read_bytes()) == ("gguf", b"four")


def test_the_whole_file_is_taken_where_parts_lie_beside_it() -> None:
    files = ["m-q4_k_m-00001-of-00002.gguf", "m-q4_k_m-00002-of-00002.gguf", "m-q4_k_m.gguf"]
    assert hub_module.choose(Source.parse("hf:o/m"), files).files == ("m-q4_k_m.gguf",)
    with pytest.raises(UnsupportedModel, match="one of several parts"):
        hub_module.choose(Source.parse("hf:o/m"), files[:2])


def test_an_unclear_choice_lists_the_files() -> None:
    with pytest.raises(UsageError) as caught:
        hub_module.choose(Source.parse("hf:o/m"), ["a-Q8_0.gguf", "a-Q5_0.gguf"])
    assert "hf:o/m:a-Q5_0.gguf\n  hf:o/m:a-Q8_0.gguf" in str(caught.value)
    with pytest.raises(UsageError, match="no single GGUF file for `Q2_K`"):
        hub_module.choose(Source.parse("hf:o/m:Q2_K"), ["a-Q8_0.gguf", "a-Q5_0.gguf"])


def test_safetensors_come_last_and_without_other_formats() -> None:
    files = [
        "model-1.safetensors",
        "consolidated.safetensors",
        "onnx/x.safetensors",
        "tokenizer.json",
        "a.bin",
    ]
    choice = hub_module.choose(Source.parse("hf:o/m"), files)
    assert choice == hub_module.Choice("safetensors", ("model-1.safetensors", "tokenizer.json"))
    with pytest.raises(UnsupportedModel, match="holds no OpenVINO"):
        hub_module.choose(Source.parse("hf:o/m"), ["pytorch_model.bin"])


def test_a_missing_repository_is_named(hub: Any, said: Any) -> None:
    with pytest.raises(
        UnknownModel, match=r"There is no repository `o/none` at `127\.0\.0\.1:\d+`"
    ) as caught:
        fetch("hf:o/none", said)
    assert "hf auth login" in str(caught.value.hint)


def test_a_gated_repository_says_whose_token_failed(
    hub: Any, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["o/gated"] = OPENVINO
    hub.gated.add("o/gated")
    with pytest.raises(NetworkError, match="`o/gated` is gated, and there is no token") as caught:
        fetch("hf:o/gated", said)
    assert f"{hub.url}/o/gated" in str(caught.value.hint)
    monkeypatch.setenv("HF_TOKEN", "hf_abc")
    with pytest.raises(NetworkError, match="the token of `HF_TOKEN` has no access"):
        fetch("hf:o/gated", said)


def test_no_network_names_the_host_and_a_way_on(hub: Any, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    with pytest.raises(NetworkError, match=f"`127.0.0.1:{port}` cannot be reached") as caught:
        fetch("hf:o/m", said)
    assert "path/to/model.gguf" in str(caught.value.hint)


def test_the_cache_is_enough_without_network(hub: Any, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["o/m"] = OPENVINO
    found = fetch("hf:o/m", said)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    assert fetch("hf:o/m", said).path == found.path
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch("hf:o/m", said).path == found.path


def test_offline_asks_nobody(hub: Any, said: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub.repositories["o/m"] = OPENVINO
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(NetworkError, match="is not in the cache") as caught:
        fetch("hf:o/m", said)
    assert str(tmp_path / "hub cache") in caught.value.message
    assert hub.asked == []


def test_a_killed_download_goes_on_where_it_stopped(
    hub: Any, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytes(range(256)) * 4000
    hub.repositories["o/m"] = {"m.Q4_K_M.gguf": data}
    hub.cut_after = 30_000
    monkeypatch.setattr(resume, "LARGE", 1)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)
    monkeypatch.setattr("time.sleep", killed)
    with pytest.raises((KeyboardInterrupt, NetworkError)):  # huggingface_hub 0.x does not try again
        fetch("hf:o/m", said)
    hub.cut_after = None
    hub.asked.clear()
    assert fetch("hf:o/m", said).path.read_bytes() == data
    [(_, area)] = hub.downloads()
    assert area == "bytes=30000-"


def killed(seconds: float) -> None:
    """Stand for a process that is killed while it waits to try again."""
    raise KeyboardInterrupt


def test_a_line_that_stays_broken_is_a_network_error(
    hub: Any, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["o/m"] = {"m.Q4_K_M.gguf": bytes(5000)}
    hub.cut_after = 0
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(NetworkError, match="cannot be reached"):
        fetch("hf:o/m", said)
