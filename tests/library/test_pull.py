"""Models that are pulled by name: once, in the format asked for, atomically."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import loopback
import pytest

from localspec.errors import (
    BadValue,
    LocalspecError,
    NetworkError,
    StorageError,
    UnknownModel,
    UnsupportedModel,
    UsageError,
)
from localspec.library import Library, catalogue, storage, verify
from localspec.library.download.hub import DownloadSize
from localspec.library.download.pull import CACHE_SHARE, disk_needed
from localspec.library.model import FORMATS
from localspec.library.sources import Source

ROOT = Path(__file__).parents[2]


@pytest.fixture
def qwen(hub: Any, tmp_path: Path, make_gguf: Any) -> Any:
    """A hub with tiny builds of Qwen3 8B in every format."""
    gguf = make_gguf(tmp_path / "q4.gguf", 4).read_bytes()
    hub.repositories |= {
        "OpenVINO/Qwen3-8B-int4-ov": loopback.openvino_files(b"4" * 2000),
        "OpenVINO/Qwen3-8B-int8-ov": loopback.openvino_files(b"8" * 3000),
        "Qwen/Qwen3-8B-GGUF": {"Qwen3-8B-Q4_K_M.gguf": gguf, "Qwen3-8B-Q8_0.gguf": gguf[:-1] + b"8"},
        "Qwen/Qwen3-8B": loopback.safetensors_files(),
    }
    return hub


def weights(model: Any) -> bytes:
    return bytes((model.folder / "openvino_model.bin").read_bytes())


def test_a_precision_is_chosen_by_option_or_name(library: Library, qwen: Any, said: Any) -> None:
    plain = library.pull("qwen3-8b", said)
    eight = library.pull("qwen3-8b", said, precision="int8")
    assert [model.name for model in (plain, eight)] == ["qwen3-8b", "qwen3-8b-int8"]
    assert (weights(plain)[:1], weights(eight)[:1]) == (b"4", b"8")
    qwen.asked.clear()
    for name in ("qwen3-8b:int8", "qwen3:8b:int8", "QWEN3-8B:int8", "qwen3-8b-int8"):
        assert library.resolve(name, said) == eight
        assert library.find(name) == eight
        assert library.pull(name, said) == eight
    assert qwen.asked == []
    assert library.remove("qwen3:int8", said) > 0
    assert [model.name for model in library.all()] == ["qwen3-8b"]


def test_the_default_precision_is_installed_once(
    library: Library, qwen: Any, said: Any, converted: list[str]
) -> None:
    four = library.pull("qwen3-8b:int4", said)
    assert four.name == "qwen3-8b"
    qwen.asked.clear()
    for name in ("qwen3-8b", "qwen3:8b:int4"):
        assert library.resolve(name, said) == library.find(name) == library.pull(name, said) == four
    assert qwen.asked == []
    assert library.pull("qwen3-8b", said, precision="int4", format="gguf").name == "qwen3-8b-int4"
    library.remove("qwen3-8b-int4", said)
    library.remove("qwen3-8b", said)
    library.pull("qwen3-8b", said, format="hf")
    assert library.find("qwen3-8b:int4") is None
    assert weights(library.resolve("qwen3-8b:int4", said)) == b"4" * 2000
    assert [model.name for model in library.all()] == ["qwen3-8b", "qwen3-8b-int4"]


def test_resolve_accepts_a_name_with_a_precision(library: Library, qwen: Any, said: Any) -> None:
    assert weights(library.resolve("qwen3-8b:int8", said)) == b"8" * 3000


def test_the_hf_format_makes_no_graph(library: Library, qwen: Any, said: Any, converted: list[str]) -> None:
    model = library.pull("qwen3-8b", said, format="hf")
    assert converted == []
    assert model.files_in("openvino") is None
    folder = model.files_in("safetensors")
    assert folder is not None
    assert (folder / "model.safetensors").read_bytes() == loopback.safetensors_files()["model.safetensors"]
    assert {path for path, _ in qwen.downloads() if "Qwen/Qwen3-8B/" not in path} == set()
    with pytest.raises(BadValue, match="`qwen3-8b` is installed in another format") as caught:
        library.pull("qwen3-8b", said, format="gguf")
    assert "localspec rm qwen3-8b" in str(caught.value.hint)


def test_the_gguf_format_makes_no_graph(library: Library, qwen: Any, said: Any, converted: list[str]) -> None:
    model = library.pull("qwen3-8b", said, format="gguf", precision="int8")
    assert converted == []
    assert model.files_in("openvino") is None
    file = model.files_in("gguf")
    assert file is not None
    assert file.name == "Qwen3-8B-Q8_0.gguf"
    assert library.pull("qwen3-8b:int8", said, format="gguf") == model


@pytest.mark.parametrize("format", ["openvino", "gguf", "hf"])
def test_the_format_selects_among_those_of_a_repository(
    library: Library, hub: Any, said: Any, tmp_path: Path, make_gguf: Any, format: str
) -> None:
    gguf = make_gguf(tmp_path / "m.gguf").read_bytes()
    every = {**loopback.openvino_files(), **loopback.safetensors_files(), "m.gguf": gguf}
    hub.repositories |= {"o/m": every, "Qwen/Qwen3-8B": every}
    kind = {"hf": "safetensors"}.get(format, format)
    model = library.pull("hf:o/m", said, format=format)
    assert [one for one in FORMATS if model.files_in(one)] == [kind]
    if format == "hf":
        assert library.pull("qwen3-8b", said, format="hf").files_in("safetensors")
    hub.repositories["o/none"] = {"m.gguf": gguf} if format != "gguf" else loopback.openvino_files()
    with pytest.raises(UnsupportedModel, match=f"holds no {kind} model"):
        library.pull("hf:o/none", said, format=format)


def test_an_unpublished_build_lists_the_published_ones(library: Library, qwen: Any, said: Any) -> None:
    with pytest.raises(BadValue, match="No openvino build of `llama-3.2-1b` is published") as caught:
        library.pull("llama-3.2-1b", said, format="openvino")
    assert str(caught.value.hint).startswith("Available: gguf (")
    with pytest.raises(BadValue, match="is not in the catalogue"):
        library.pull("hf:o/m", said, precision="int8")
    with pytest.raises(BadValue, match="`./m.gguf` is not in the catalogue"):
        library.pull("./m.gguf", said, format="gguf")
    assert qwen.asked == []


def test_the_size_is_reported_before_the_first_byte(library: Library, qwen: Any, said: Any) -> None:
    sizes: list[DownloadSize] = []
    before: list[int] = []

    def on_size(size: DownloadSize) -> None:
        sizes.append(size)
        before.append(len(qwen.downloads()))

    library.pull("qwen3-8b", said, on_size=on_size)
    size = sum(map(len, loopback.openvino_files(bytes(2000)).values()))
    [found] = sizes
    assert (str(found.source), found.format) == ("hf:OpenVINO/Qwen3-8B-int4-ov", "openvino")
    assert (found.download, found.size, before) == (size, size, [0])
    assert found.disk == size + int(CACHE_SHARE * size)
    library.pull("qwen3-8b", said, on_size=on_size)
    assert len(sizes) == 1


def test_the_disk_that_a_model_takes_in_all() -> None:
    """A download that is converted takes its graph too; a package's size follows from the parameters."""
    gguf = DownloadSize(Source.parse("hf:o/m"), "gguf", download=400, size=1000)
    assert disk_needed(gguf, "skip") == 400
    assert disk_needed(gguf, "optional") == 400 + 1800 + int(CACHE_SHARE * 1800)
    assert disk_needed(DownloadSize(Source.parse("hf:o/m"), "gguf"), "optional") == 0
    entry = catalogue.lookup("smollm2-135m")
    assert entry is not None
    package = DownloadSize(next(each for each in entry.sources if each.kind == "pypi"), "gguf")
    assert 200_000_000 < disk_needed(package, "optional") < 500_000_000


def test_a_first_use_says_what_it_takes(library: Library, qwen: Any, said: Any) -> None:
    library.resolve("qwen3-8b", said)
    lines = [line for line in said.lines if line.startswith("`qwen3-8b` takes up to 0.0 GB of disk")]
    assert len(lines) == 1


def test_a_graph_that_does_not_fit_is_refused_before_the_first_byte(
    library: Library, qwen: Any, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(qwen.repositories["Qwen/Qwen3-8B-GGUF"]["Qwen3-8B-Q4_K_M.gguf"])
    monkeypatch.setattr(storage, "free_bytes", lambda folder: 2 * size)
    needed = f"{int(1.8 * size) + size:,}"
    with pytest.raises(StorageError, match=f"{2 * size:,} bytes are free and {needed} are needed"):
        library.resolve("hf:Qwen/Qwen3-8B-GGUF:Q4_K_M", said)
    assert qwen.downloads() == []
    assert library.pull("qwen3-8b", said, format="gguf").files_in("gguf")  # which makes no graph


def test_an_installed_model_needs_no_request(
    library: Library, qwen: Any, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {
        "qwen3-8b": "openvino",
        "qwen3-8b:int8": "openvino",
        "hf:OpenVINO/Qwen3-8B-int8-ov": "openvino",
        "hf:Qwen/Qwen3-8B-GGUF:Q8_0": "gguf",
    }
    here = [library.resolve(name, said, (format,)) for name, format in names.items()]

    def forbidden(self: socket.socket, address: object) -> None:
        raise AssertionError(f"it connects to {address}")

    monkeypatch.setattr(socket.socket, "connect", forbidden)
    monkeypatch.setattr(socket.socket, "connect_ex", forbidden)
    monkeypatch.setattr(socket, "getaddrinfo", forbidden)
    assert [library.resolve(name, said, (format,)) for name, format in names.items()] == here
    assert [library.pull(name, said) for name in names] == here
    assert [library.find(name) for name in list(names)[:2]] == here[:2]
    assert {model.name for model in library.all()} == {model.name for model in here}


def test_a_second_pull_waits_and_finds_it(library: Library, qwen: Any, said: Any) -> None:
    qwen.piece, qwen.pause = 500, 0.05
    other = type(said)()
    found: list[Any] = []

    def second() -> None:
        while not qwen.downloads():
            time.sleep(0.01)
        found.append(Library(library.home).pull("qwen3-8b", other))

    thread = threading.Thread(target=second)
    thread.start()
    model = library.pull("qwen3-8b", said)
    thread.join()
    assert found == [model]
    assert other.lines == ["Another localspec is using `qwen3-8b`; waiting for it"]
    paths = [path for path, _ in qwen.downloads()]
    assert len(paths) == len(set(paths)) == len(loopback.openvino_files())


def test_one_file_under_two_names_is_downloaded_once(library: Library, qwen: Any, said: Any) -> None:
    qwen.piece, qwen.pause = 500, 0.05
    threads = [
        threading.Thread(target=Library(library.home).pull, args=(name, said))
        for name in ("qwen3-8b", "qwen3-8b:int4")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(model.name, weights(model)) for model in library.all()] == [("qwen3-8b", b"4" * 2000)]
    assert [path.endswith("model.bin") for path, _ in qwen.downloads()].count(True) == 1


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("my model", UnknownModel, "Unknown model `my model`"),
        ("モデル", UnknownModel, "Unknown model `モデル`"),
        ("", UnknownModel, "Unknown model ``"),
        ("a..b", UnknownModel, "Unknown model `a..b`"),
        ("../qwen3-8b", UnknownModel, "No such file or folder: `../qwen3-8b`"),
        ("hf:../../etc", UsageError, "is not a source of models"),
        ("hf:o/..", UsageError, "is not a source of models"),
        ("hf:o/m@../../x", UsageError, "is not a source of models"),
        ("hf:o/my model", UsageError, "is not a source of models"),
        ("hf:o/模型", UsageError, "is not a source of models"),
        ("qwen3-8b:int5", UnknownModel, "Unknown model `qwen3-8b:int5`"),
    ],
)
def test_invalid_names(
    library: Library,
    hub: Any,
    said: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    kind: type[LocalspecError],
    message: str,
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(kind) as caught:
        library.pull(name, said)
    assert message in caught.value.message
    assert caught.value.hint
    assert hub.asked == []


@pytest.mark.parametrize("name", ["whisper-tiny", "whisper:large-v3", "hf:openai/whisper-tiny"])
def test_a_model_of_speech_is_refused_before_the_first_byte(
    library: Library, hub: Any, said: Any, name: str
) -> None:
    with pytest.raises(UnsupportedModel, match="is a model of speech: it transcribes audio") as caught:
        library.resolve(name, said)
    assert f"localspec transcribe AUDIO --model {name}" in str(caught.value.hint)
    assert hub.asked == []


def test_a_model_of_text_does_not_transcribe(library: Library, hub: Any, said: Any) -> None:
    with pytest.raises(UnsupportedModel, match="`qwen3-8b` is a model of text, and only") as caught:
        library.resolve("qwen3-8b", said, kind=catalogue.SPEECH)
    assert "`whisper-base`" in str(caught.value.hint)
    assert hub.asked == []


def test_offline_says_where_it_looked(
    library: Library, qwen: Any, said: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(NetworkError) as caught:
        library.pull("qwen3-8b", said)
    assert f"is not in the cache `{tmp_path / 'hub cache'}`" in caught.value.message
    assert "--offline" in str(caught.value.hint)
    assert qwen.asked == []


def test_a_data_folder_that_cannot_be_written(qwen: Any, said: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written") as caught:
        Library(tmp_path / "file" / "data").pull("qwen3-8b", said)
    assert "LOCALSPEC_HOME" in str(caught.value.hint)
    assert qwen.asked == []


# Forks a pull for each delay read from stdin, kills it after that many seconds, and prints its exit status.
KILLER = """
    import os, signal, sys, time
    from pathlib import Path
    import filelock, huggingface_hub, huggingface_hub.hf_api, huggingface_hub.file_download, tokenizers
    from localspec.library import Library, Silent
    from localspec.library.download import hub
    from localspec.formats.gguf import file

    for line in sys.stdin:
        name, format, delay = line.split()
        child = os.fork()
        if not child:
            Library(Path(sys.argv[1])).resolve(name, Silent(), (format,))
            os._exit(0)
        time.sleep(float(delay))
        os.kill(child, signal.SIGKILL)
        print(os.waitpid(child, 0)[1], flush=True)
"""


def test_a_pull_killed_at_any_moment_leaves_no_wrong_model(
    library: Library, hub: Any, said: Any, tmp_path: Path, make_gguf: Any
) -> None:
    gguf = make_gguf(tmp_path / "m.gguf").read_bytes() + random.Random(1).randbytes(60_000)
    hub.repositories["o/ov"] = loopback.openvino_files(random.Random(2).randbytes(60_000))
    hub.repositories["o/g"] = {"m.gguf": gguf}
    hub.piece, hub.pause = 2000, 0.01
    names = {"hf:o/ov": "openvino", "hf:o/g": "gguf"}
    moments = random.Random(3)
    killed, resumed = 0, 0
    script = [sys.executable, "-c", textwrap.dedent(KILLER), str(library.home)]
    with subprocess.Popen(
        script, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as killer:
        assert killer.stdin is not None
        assert killer.stdout is not None
        for number in range(60):
            if number >= 20 and killed >= 5 and resumed:
                break
            name, format = list(names.items())[number % 2]
            hub.asked.clear()
            killer.stdin.write(f"{name} {format} {moments.uniform(0.0, 0.5 + number // 20)}\n")
            killer.stdin.flush()
            killed += killer.stdout.readline() == "9\n"
            resumed += any(area for _, area in hub.downloads())
            for model in library.all():
                assert verify.problems(model, said)[1] == []
            if len(library.all()) == 2:
                for model in library.all():  # the GGUF lies in the cache
                    library.remove(model.name, said)
                shutil.rmtree(tmp_path / "hub cache")
        killer.stdin.close()
    assert killed >= 5
    assert resumed >= 1
    hub.pause = 0
    for name, format in names.items():
        model = library.resolve(name, said, (format,))
        assert verify.problems(model, said)[1] == []
        assert model.files_in(format) is not None
    assert len(library.all()) == 2
    assert [path for path in library.models.iterdir() if ".partial" in path.name] == []
