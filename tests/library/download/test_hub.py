from __future__ import annotations

import hashlib
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from command import Localspec
from loopback import Trouble, proxy, serving, serving_hub, socks

from localspec.errors import (
    DigestMismatch,
    NetworkError,
    StorageError,
    UnknownModel,
    UnsupportedModel,
    UsageError,
)
from localspec.library import storage
from localspec.library.download import hub as hub_module
from localspec.library.download.names import RepoFile
from localspec.library.download.selection import FileSelection, choose
from localspec.library.sources import Source

BESIDE = {"config.json": b"{}", "tokenizer.json": b"{}", "README.md": b"# hello"}
OPENVINO = {"openvino_model.xml": b"<net/>", "openvino_model.bin": bytes(5000), **BESIDE}


def fetch(text: str, said: Any) -> Any:
    return hub_module.fetch(Source.parse(text), said)


def test_the_preprocessor_of_pictures_comes_with_the_weights() -> None:
    names = ["config.json", "model.safetensors", "preprocessor_config.json", "training_args.bin"]
    found = choose(Source.parse("hf:o/llava"), [RepoFile(name) for name in names])
    assert sorted(found.files) == names[:3]


def test_openvino_files_are_preferred_and_others_left(hub: Any, said: Any) -> None:
    hub.repositories["o/m"] = {**OPENVINO, "model.safetensors": bytes(9), "m-Q4_K_M.gguf": bytes(9)}
    found = fetch("hf:o/m", said)
    assert found.format == "openvino"
    assert sorted(path.name for path in found.path.iterdir()) == [
        "config.json",
        "openvino_model.bin",
        "openvino_model.xml",
        "tokenizer.json",
    ]
    assert (found.path / "openvino_model.bin").read_bytes() == bytes(5000)
    assert str(found.source) == "hf:o/m@0123456789abcdef0123456789abcdef01234567"


def test_cached_files_are_not_downloaded_again(hub: Any, said: Any) -> None:
    hub.repositories["o/m"] = OPENVINO
    first = fetch("hf:o/m", said)
    before = len(hub.downloads())
    assert fetch("hf:o/m", said).path == first.path
    assert len(hub.downloads()) == before
    assert said.steps == ["Downloading o/m", "Checking openvino_model.bin"]


@pytest.mark.parametrize("text", ["hf:o/m", "hf:o/m:Q4_K_M", "hf:o/m:q4_k_m", "hf:o/m:m.Q4_K_M.gguf"])
def test_a_gguf_is_chosen_by_quantization_or_name(hub: Any, said: Any, text: str) -> None:
    hub.repositories["o/m"] = {"m.Q4_K_M.gguf": b"four", "m.Q8_0.gguf": b"eight", "mmproj-f16.gguf": b"eyes"}
    found = fetch(text, said)
    assert (found.format, found.path.read_bytes()) == ("gguf", b"four")


def test_a_single_file_is_preferred_to_parts() -> None:
    files = ["m-q4_k_m-00001-of-00002.gguf", "m-q4_k_m-00002-of-00002.gguf", "m-q4_k_m.gguf"]
    assert choose(Source.parse("hf:o/m"), files).files == ("m-q4_k_m.gguf",)
    with pytest.raises(UnsupportedModel, match="split into several parts"):
        choose(Source.parse("hf:o/m"), files[:2])


def test_an_ambiguous_choice_lists_the_files() -> None:
    with pytest.raises(UsageError) as caught:
        choose(Source.parse("hf:o/m"), ["a-Q8_0.gguf", "a-Q5_0.gguf"])
    assert "hf:o/m:a-Q5_0.gguf\n  hf:o/m:a-Q8_0.gguf" in str(caught.value)
    with pytest.raises(UsageError, match="no single GGUF file for `Q2_K`"):
        choose(Source.parse("hf:o/m:Q2_K"), ["a-Q8_0.gguf", "a-Q5_0.gguf"])


def test_safetensors_come_last_and_without_other_formats() -> None:
    files = [
        "model-1.safetensors",
        "consolidated.safetensors",
        "onnx/x.safetensors",
        "tokenizer.json",
        "a.bin",
    ]
    choice = choose(Source.parse("hf:o/m"), files)
    assert choice == FileSelection("safetensors", ("model-1.safetensors", "tokenizer.json"))
    with pytest.raises(UnsupportedModel, match="holds no OpenVINO"):
        choose(Source.parse("hf:o/m"), ["pytorch_model.bin"])


def test_a_missing_repository_is_named(hub: Any, said: Any) -> None:
    with pytest.raises(UnknownModel, match=r"Unknown repository `o/none` at `127\.0\.0\.1:\d+`") as caught:
        fetch("hf:o/none", said)
    assert "hf auth login" in str(caught.value.hint)


def test_a_gated_repository_names_the_token(hub: Any, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["o/gated"] = OPENVINO
    hub.gated.add("o/gated")
    with pytest.raises(NetworkError, match="`o/gated` is gated and requires an access token") as caught:
        fetch("hf:o/gated", said)
    assert f"{hub.url}/o/gated" in str(caught.value.hint)
    monkeypatch.setenv("HF_TOKEN", "hf_abc")
    with pytest.raises(NetworkError, match="the token of `HF_TOKEN` has no access"):
        fetch("hf:o/gated", said)


def test_no_network_names_the_host(hub: Any, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    with pytest.raises(NetworkError, match=f"Cannot connect to `127.0.0.1:{port}`") as caught:
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


def test_offline_sends_nothing(hub: Any, said: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub.repositories["o/m"] = OPENVINO
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(NetworkError, match="is not in the cache") as caught:
        fetch("hf:o/m", said)
    assert str(tmp_path / "hub cache") in caught.value.message
    assert hub.asked == []


@pytest.mark.parametrize("kind", ["gguf", "openvino"])
def test_a_file_with_a_wrong_digest_is_deleted_and_downloaded_again(
    hub: Any, said: Any, tmp_path: Path, kind: str
) -> None:
    file, files = {
        "gguf": ("m.gguf", {"m.gguf": bytes(4000)}),
        "openvino": ("openvino_model.bin", OPENVINO),
    }[kind]
    hub.repositories["o/m"] = files
    hub.digests[file] = "ab" * 32
    with pytest.raises(
        DigestMismatch, match=f"`{file}` is not the expected file: sha256 .*, expected abababababab…"
    ):
        fetch("hf:o/m", said)
    left = [path for path in (tmp_path / "hub cache").rglob("*") if path.is_file() and "ab" * 32 in path.name]
    assert left == []
    assert not list((tmp_path / "hub cache").rglob(file))
    hub.digests.clear()
    hub.asked.clear()
    found = fetch("hf:o/m", said)
    path = found.path if kind == "gguf" else found.path / file
    assert path.read_bytes() == files[file]
    assert [path.endswith(file) for path, _ in hub.downloads()].count(True) == 1


def test_the_catalogues_digest_overrides_the_hubs(hub: Any, said: Any, tmp_path: Path) -> None:
    hub.repositories["o/m"] = {"m.gguf": bytes(4000)}
    with pytest.raises(DigestMismatch, match="`m.gguf` is not the expected file"):
        hub_module.fetch(Source.parse("hf:o/m"), said, digest="0" * 64)
    assert list((tmp_path / "hub cache").rglob("*.gguf")) == []
    right = hashlib.sha256(bytes(4000)).hexdigest()
    assert hub_module.fetch(Source.parse("hf:o/m"), said, digest=right).digest == right


def test_right_digests_are_checked_once(hub: Any, said: Any) -> None:
    hub.repositories["o/m"] = {"m.gguf": bytes(4000)}
    hub.repositories["o/ov"] = OPENVINO
    fetch("hf:o/m", said)
    fetch("hf:o/ov", said)
    steps = ["Downloading o/m", "Checking m.gguf", "Downloading o/ov", "Checking openvino_model.bin"]
    assert said.steps == steps


def test_a_truncated_cached_file_is_downloaded_again(hub: Any, said: Any) -> None:
    hub.repositories["o/m"] = OPENVINO
    found = fetch("hf:o/m", said)
    (found.path / "openvino_model.bin").resolve().write_bytes(b"short")
    assert (fetch("hf:o/m", said).path / "openvino_model.bin").read_bytes() == bytes(5000)


def test_another_host_gets_no_token(
    hub: Any, said: Any, monkeypatch: pytest.MonkeyPatch, waited: list[float]
) -> None:
    data = bytes(range(256)) * 4000
    hub.repositories["o/m"] = {"m.gguf": data}
    monkeypatch.setenv("HF_TOKEN", "hf_abc")
    with serving_hub() as store:
        store.repositories, store.cut_after = hub.repositories, 600_000
        hub.elsewhere = store.url
        assert fetch("hf:o/m", said).path.read_bytes() == data
    assert set(hub.tokens) == {"Bearer hf_abc"}
    assert set(store.tokens) == {None}
    first, second = [area for _, area in store.downloads()]
    assert first is None
    assert second is not None  # the redirect keeps the Range
    assert second > "bytes=5"


def test_a_proxy_is_used(hub: Any, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["o/m"] = OPENVINO
    seen: list[str] = []
    with serving(proxy(seen)) as address:
        for name in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(name, address)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        new_connections()
        fetch("hf:o/m", said)
    new_connections()
    assert len(seen) == len(hub.asked) == 4  # equal files are downloaded once
    assert all(path.startswith(hub.url) for path in seen)


@pytest.mark.parametrize("kind", ["socks5", "socks5h"])
@pytest.mark.parametrize("variable", ["ALL_PROXY", "http_proxy"])
def test_a_socks_proxy_is_used(
    hub: Any, said: Any, monkeypatch: pytest.MonkeyPatch, kind: str, variable: str
) -> None:
    hub.repositories["o/m"] = OPENVINO
    without_proxies(monkeypatch)
    seen: list[tuple[str, int]] = []
    with socks(seen) as address:
        monkeypatch.setenv(variable, f"{kind}://{address}")
        new_connections()
        assert fetch("hf:o/m", said).format == "openvino"
        new_connections()
    assert {port for _, port in seen} == {int(hub.url.rpartition(":")[2])}


def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


UNUSABLE = "is no address of a proxy that can be used"


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"HF_ENDPOINT": "huggingface.co"}, "`HF_ENDPOINT` is `huggingface.co`, which is no hub's address"),
        ({"HF_ENDPOINT": "ftp://huggingface.co"}, "`HF_ENDPOINT` is"),
        ({"HF_ENDPOINT": "http://"}, "`HF_ENDPOINT` is"),
        ({"HF_ENDPOINT": "http://[::1"}, "`HF_ENDPOINT` is"),
        ({"HF_ENDPOINT": "http://h:port"}, "`HF_ENDPOINT` is"),
        ({"HF_ENDPOINT": "http://h:99999"}, "`HF_ENDPOINT` is"),
        ({"HF_ENDPOINT": "http://h\xe9"}, "`HF_ENDPOINT` is"),
        ({"HF_HUB_DOWNLOAD_TIMEOUT": "soon"}, "`HF_HUB_DOWNLOAD_TIMEOUT` is `soon`"),
        ({"HF_HUB_ETAG_TIMEOUT": "-1"}, "`HF_HUB_ETAG_TIMEOUT` is `-1`"),
        ({"HTTP_PROXY": "ftp://127.0.0.1:9"}, UNUSABLE),
        ({"http_proxy": "http://127.0.0.1:port"}, UNUSABLE),
        ({"ALL_PROXY": "socks9://127.0.0.1:9"}, UNUSABLE),
        ({"HTTP_PROXY": "http://"}, UNUSABLE),
        (
            {"HTTP_PROXY": "127.0.0.1:9"},
            "through the proxy `127.0.0.1:9` of `HTTP_PROXY`: Connection refused",
        ),
        ({"ALL_PROXY": "socks5://u:secret@127.0.0.1:9"}, "through the proxy `127.0.0.1:9` of `ALL_PROXY`"),
        ({"SSL_CERT_FILE": "/no/such"}, "`SSL_CERT_FILE` names `/no/such`, which is no file"),
        ({"SSL_CERT_FILE": os.sep}, "`SSL_CERT_FILE` names `/`, which is no file"),
        ({"REQUESTS_CA_BUNDLE": "/no/such"}, "`REQUESTS_CA_BUNDLE` names"),
        ({"HF_TOKEN": "hf_\xe9"}, ""),
        ({"HF_TOKEN": "hf_a\nb"}, "`HF_TOKEN` holds characters that no token has"),
        ({"HF_ENDPOINT": "http://no-such-host.invalid"}, "`no-such-host.invalid`: its name is not known"),
        ({}, "Connection refused"),
    ],
)
def test_wrong_settings_of_the_network_are_named(
    tmp_path: Path, variables: dict[str, str], told: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = taken.getsockname()[1]
    names = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
    nothing = dict.fromkeys([*names, *map(str.upper, names)], "")
    own = {"HF_ENDPOINT": f"http://127.0.0.1:{closed}", "HF_HOME": str(tmp_path), "NO_PROXY": ""}
    done = Localspec(tmp_path).run("pull", "hf:o/m", **(nothing | own | variables))
    assert done.code in (1, 2)
    assert done.err.startswith("error: ")
    assert told in done.err
    assert "secret" not in done.err


def new_connections() -> None:
    """Make huggingface_hub read the proxies again, as a new process does."""
    from huggingface_hub import utils

    for name in ("close_session", "reset_sessions"):  # since 1.0, and before
        if hasattr(utils, name):
            getattr(utils, name)()


def test_rejected_tokens(hub: Any, said: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "no token").write_text("hf_old")
    hub.repositories["o/m"] = OPENVINO
    hub.troubles.append(Trouble(401))
    with pytest.raises(NetworkError, match="rejected the token of `hf auth login`") as caught:
        fetch("hf:o/m", said)
    assert f"{hub.url}/settings/tokens" in str(caught.value.hint)
    hub.troubles.append(Trouble(403))
    with pytest.raises(NetworkError, match="The token of `hf auth login` has no permission to read `o/m`"):
        fetch("hf:o/m", said)
    with pytest.raises(UnknownModel, match="or it is private and the token of `hf auth login` has no access"):
        fetch("hf:o/private", said)
    (tmp_path / "no token").unlink()
    hub.troubles.append(Trouble(403))
    with pytest.raises(NetworkError, match="`o/m` at .* requires an access token"):
        fetch("hf:o/m", said)


def test_too_little_space_is_reported_before_the_first_byte(
    hub: Any, said: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub.repositories["o/m"] = OPENVINO
    monkeypatch.setattr(storage, "free_bytes", lambda folder: 1234)
    needed = f"{sum(len(data) for name, data in OPENVINO.items() if name != 'README.md'):,}"
    with pytest.raises(StorageError, match=f"1,234 bytes are free and {needed} are needed") as caught:
        fetch("hf:o/m", said)
    assert "HF_HUB_CACHE" in str(caught.value.hint)
    assert hub.downloads() == []


def test_sizes_that_only_the_files_tell_are_counted_too(
    hub: Any, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["o/m"] = OPENVINO
    hub.silent = True
    monkeypatch.setattr(storage, "free_bytes", lambda folder: 1234)
    with pytest.raises(StorageError, match="1,234 bytes are free"):
        fetch("hf:o/m", said)
    assert hub.downloads() == []


def test_a_cache_that_cannot_be_written(
    hub: Any, said: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub.repositories["o/m"] = OPENVINO
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(StorageError, match="cannot be written") as caught:
        fetch("hf:o/m", said)
    assert "HF_HUB_CACHE" in str(caught.value.hint)


def test_an_incomplete_cached_model_is_not_used(hub: Any, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    index = {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
    hub.repositories["o/m"] = {
        "m-1.safetensors": bytes(100),
        "m-2.safetensors": bytes(200),
        "model.safetensors.index.json": json.dumps(index).encode(),
        **BESIDE,
    }
    folder = fetch("hf:o/m", said).path
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch("hf:o/m", said).path == folder
    (folder / "m-2.safetensors").unlink()
    with pytest.raises(NetworkError, match="is not in the cache"):
        fetch("hf:o/m", said)
    (folder / "m-1.safetensors").unlink()
    with pytest.raises(NetworkError, match="is not in the cache"):
        fetch("hf:o/m", said)


def test_files_outside_the_folder_are_ignored(hub: Any, said: Any, tmp_path: Path) -> None:
    hub.repositories["o/m"] = {"../../../evil.gguf": b"evil", "/abs.gguf": b"evil", "m.gguf": b"good"}
    assert fetch("hf:o/m", said).path.read_bytes() == b"good"
    hub.repositories["o/n"] = {"../../../evil.gguf": b"evil"}
    with pytest.raises(UnsupportedModel):
        fetch("hf:o/n", said)


def test_the_cache_is_the_one_of_hugging_faces_tools(hub: Any, said: Any, tmp_path: Path) -> None:
    from huggingface_hub import scan_cache_dir, try_to_load_from_cache

    hub.repositories["o/m"] = OPENVINO
    folder = fetch("hf:o/m", said).path
    found = try_to_load_from_cache("o/m", "openvino_model.bin", cache_dir=tmp_path / "hub cache")
    assert found == str(folder / "openvino_model.bin")
    [repository] = scan_cache_dir(tmp_path / "hub cache").repos
    assert (repository.repo_id, set(repository.refs)) == ("o/m", {"main"})
    assert repository.size_on_disk == sum(len(path.read_bytes()) for path in folder.iterdir()) - 2  # one {}
    assert list(scan_cache_dir(tmp_path / "hub cache").warnings) == []


def test_a_mirror_without_sizes_is_asked_for_each_file(hub: Any, said: Any) -> None:
    hub.repositories["o/m"] = OPENVINO
    hub.silent = True
    found = fetch("hf:o/m", said)
    assert (found.path / "openvino_model.bin").read_bytes() == bytes(5000)
    assert [method for method, _, _ in hub.asked].count("HEAD") == 4
    assert fetch("hf:o/m", said).path == found.path
    hub.repositories["o/wrong"] = {"m.gguf": bytes(4000)}
    hub.digests["m.gguf"] = "ab" * 32
    with pytest.raises(DigestMismatch):
        fetch("hf:o/wrong", said)


def test_a_server_without_ranges_starts_again(hub: Any, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(256)) * 4000
    hub.repositories["o/m"] = {"m.gguf": data}
    hub.cut_after, hub.whole = 600_000, True
    monkeypatch.setattr(
        "localspec.library.download.retry.sleep", lambda seconds: setattr(hub, "cut_after", None)
    )
    assert fetch("hf:o/m", said).path.read_bytes() == data


def test_a_partial_larger_than_the_file_is_discarded(hub: Any, said: Any, tmp_path: Path) -> None:
    data = bytes(4000)
    hub.repositories["o/m"] = {"m.gguf": data}
    blobs = tmp_path / "hub cache" / "models--o--m" / "blobs"
    blobs.mkdir(parents=True)
    partial = blobs / f"{hashlib.sha256(data).hexdigest()}.localspec.incomplete"
    partial.write_bytes(b"x" * 5000)
    assert fetch("hf:o/m", said).path.read_bytes() == data
    assert not partial.exists()


@pytest.mark.parametrize("without", [["symlink_to"], ["symlink_to", "hardlink_to"]])
def test_a_system_without_links(
    hub: Any, said: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, without: list[str]
) -> None:
    def refused(self: Path, target: object) -> None:
        raise OSError("no links here")

    for name in without:
        monkeypatch.setattr(Path, name, refused)
    hub.repositories["o/m"] = {"m.gguf": bytes(4000)}
    hub.repositories["o/ov"] = OPENVINO
    folder = fetch("hf:o/ov", said).path
    assert (folder / "openvino_model.bin").read_bytes() == bytes(5000)
    assert not (folder / "openvino_model.bin").is_symlink()
    with pytest.raises(DigestMismatch):
        hub_module.fetch(Source.parse("hf:o/m"), said, digest="0" * 64)
    assert [path for path in (tmp_path / "hub cache" / "models--o--m").rglob("*") if path.is_file()] == [
        tmp_path / "hub cache" / "models--o--m" / "refs" / "main"
    ]
