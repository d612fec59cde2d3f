"""Models that are fetched under a name: once, in the form asked for, whole or not at all."""

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
from localspec.library import Library, storage, verify
from localspec.library.download.hub import Takes
from localspec.library.model import FORMS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def qwen(hub: Any, tmp_path: Path, make_gguf: Any) -> Any:
    """A hub that has Qwen3 8B in all its forms, each tiny."""
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


def test_a_precision_is_had_by_option_and_by_name(library: Library, qwen: Any, said: Any) -> None:
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


def test_a_precision_that_the_plain_name_stands_for_is_kept_once(
    library: Library, qwen: Any, said: Any, converted: list[str]
) -> None:
    four = library.pull("qwen3-8b:int4", said)
    assert four.name == "qwen3-8b"
    qwen.asked.clear()
    for name in ("qwen3-8b", "qwen3:8b:int4"):
        assert library.resolve(name, said) == library.find(name) == library.pull(name, said) == four
    assert qwen.asked == []
    assert library.pull("qwen3-8b", said, precision="int4", form="gguf").name == "qwen3-8b-int4"
    library.remove("qwen3-8b-int4", said)
    library.remove("qwen3-8b", said)
    library.pull("qwen3-8b", said, form="hf")
    assert library.find("qwen3-8b:int4") is None
    assert weights(library.resolve("qwen3-8b:int4", said)) == b"4" * 2000
    assert [model.name for model in library.all()] == ["qwen3-8b", "qwen3-8b-int4"]


def test_a_name_with_a_precision_is_fetched_by_resolve(library: Library, qwen: Any, said: Any) -> None:
    assert weights(library.resolve("qwen3-8b:int8", said)) == b"8" * 3000


def test_a_folder_of_safetensors_stays_one(
    library: Library, qwen: Any, said: Any, converted: list[str]
) -> None:
    model = library.pull("qwen3-8b", said, form="hf")
    assert converted == []
    assert model.form("openvino") is None
    folder = model.form("safetensors")
    assert folder is not None
    assert (folder / "model.safetensors").read_bytes() == loopback.safetensors_files()["model.safetensors"]
    assert {path for path, _ in qwen.downloads() if "Qwen/Qwen3-8B/" not in path} == set()
    with pytest.raises(BadValue, match="`qwen3-8b` is here in another form") as caught:
        library.pull("qwen3-8b", said, form="gguf")
    assert "localspec rm qwen3-8b" in str(caught.value.hint)


def test_a_gguf_stays_one(library: Library, qwen: Any, said: Any, converted: list[str]) -> None:
    model = library.pull("qwen3-8b", said, form="gguf", precision="int8")
    assert converted == []
    assert model.form("openvino") is None
    file = model.form("gguf")
    assert file is not None
    assert file.name == "Qwen3-8B-Q8_0.gguf"
    assert library.pull("qwen3-8b:int8", said, form="gguf") == model


@pytest.mark.parametrize("form", ["openvino", "gguf", "hf"])
def test_a_form_is_taken_of_a_repository_that_has_them_all(
    library: Library, hub: Any, said: Any, tmp_path: Path, make_gguf: Any, form: str
) -> None:
    gguf = make_gguf(tmp_path / "m.gguf").read_bytes()
    every = {**loopback.openvino_files(), **loopback.safetensors_files(), "m.gguf": gguf}
    hub.repositories |= {"o/m": every, "Qwen/Qwen3-8B": every}
    kind = {"hf": "safetensors"}.get(form, form)
    model = library.pull("hf:o/m", said, form=form)
    assert [one for one in FORMS if model.form(one)] == [kind]
    if form == "hf":
        assert library.pull("qwen3-8b", said, form="hf").form("safetensors")
    hub.repositories["o/none"] = {"m.gguf": gguf} if form != "gguf" else loopback.openvino_files()
    with pytest.raises(UnsupportedModel, match=f"holds no {kind} model"):
        library.pull("hf:o/none", said, form=form)


def test_what_is_not_to_be_had_names_what_is(library: Library, qwen: Any, said: Any) -> None:
    with pytest.raises(BadValue, match="`llama-3.2-1b` is not to be had as openvino") as caught:
        library.pull("llama-3.2-1b", said, form="openvino")
    assert str(caught.value.hint).startswith("There is gguf (")
    with pytest.raises(BadValue, match="is not in the catalogue"):
        library.pull("hf:o/m", said, precision="int8")
    with pytest.raises(BadValue, match="`./m.gguf` is not in the catalogue"):
        library.pull("./m.gguf", said, form="gguf")
    assert qwen.asked == []


def test_what_it_takes_is_heard_before_the_first_byte(library: Library, qwen: Any, said: Any) -> None:
    heard: list[Takes] = []
    before: list[int] = []

    def ready(takes: Takes) -> None:
        heard.append(takes)
        before.append(len(qwen.downloads()))

    library.pull("qwen3-8b", said, ready=ready)
    size = sum(map(len, loopback.openvino_files(bytes(2000)).values()))
    [takes] = heard
    assert (str(takes.source), takes.kind) == ("hf:OpenVINO/Qwen3-8B-int4-ov", "openvino")
    assert (takes.download, takes.size, before) == (size, size, [0])
    library.pull("qwen3-8b", said, ready=ready)
    assert len(heard) == 1


def test_a_graph_that_will_not_fit_is_told_before_the_first_byte(
    library: Library, qwen: Any, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(qwen.repositories["Qwen/Qwen3-8B-GGUF"]["Qwen3-8B-Q4_K_M.gguf"])
    monkeypatch.setattr(storage, "free", lambda folder: 2 * size)
    needed = f"{int(1.8 * size) + size:,}"
    with pytest.raises(StorageError, match=f"{2 * size:,} bytes are free and {needed} are needed"):
        library.resolve("hf:Qwen/Qwen3-8B-GGUF:Q4_K_M", said)
    assert qwen.downloads() == []
    assert library.pull("qwen3-8b", said, form="gguf").form("gguf")  # which makes no graph


def test_nothing_is_asked_about_a_model_that_is_here(
    library: Library, qwen: Any, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {
        "qwen3-8b": "openvino",
        "qwen3-8b:int8": "openvino",
        "hf:OpenVINO/Qwen3-8B-int8-ov": "openvino",
        "hf:Qwen/Qwen3-8B-GGUF:Q8_0": "gguf",
    }
    here = [library.resolve(name, said, (form,)) for name, form in names.items()]

    def forbidden(self: socket.socket, address: object) -> None:
        raise AssertionError(f"it connects to {address}")

    monkeypatch.setattr(socket.socket, "connect", forbidden)
    monkeypatch.setattr(socket.socket, "connect_ex", forbidden)
    monkeypatch.setattr(socket, "getaddrinfo", forbidden)
    assert [library.resolve(name, said, (form,)) for name, form in names.items()] == here
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
    assert other.lines == ["Another localspec is busy with `qwen3-8b`; waiting for it"]
    paths = [path for path, _ in qwen.downloads()]
    assert len(paths) == len(set(paths)) == len(loopback.openvino_files())


def test_one_file_under_two_names_is_fetched_once_at_a_time(library: Library, qwen: Any, said: Any) -> None:
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
        ("my model", UnknownModel, "There is no model called `my model`"),
        ("モデル", UnknownModel, "There is no model called `モデル`"),
        ("", UnknownModel, "There is no model called ``"),
        ("a..b", UnknownModel, "There is no model called `a..b`"),
        ("../qwen3-8b", UnknownModel, "There is no file or folder `../qwen3-8b`"),
        ("hf:../../etc", UsageError, "is not a place to fetch a model from"),
        ("hf:o/..", UsageError, "is not a place to fetch a model from"),
        ("hf:o/m@../../x", UsageError, "is not a place to fetch a model from"),
        ("hf:o/my model", UsageError, "is not a place to fetch a model from"),
        ("hf:o/模型", UsageError, "is not a place to fetch a model from"),
        ("qwen3-8b:int5", UnknownModel, "There is no model called `qwen3-8b:int5`"),
    ],
)
def test_names_that_cannot_be(
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


# Forks a pull for each delay that it reads, kills it after that many seconds, and says how it ended.
KILLER = """
    import os, signal, sys, time
    from pathlib import Path
    import filelock, huggingface_hub, huggingface_hub.hf_api, huggingface_hub.file_download, tokenizers
    from localspec.library import Library, Silent, store, hub
    from localspec.formats import gguf

    for line in sys.stdin:
        name, form, delay = line.split()
        child = os.fork()
        if not child:
            Library(Path(sys.argv[1])).resolve(name, Silent(), (form,))
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
            name, form = list(names.items())[number % 2]
            hub.asked.clear()
            killer.stdin.write(f"{name} {form} {moments.uniform(0.0, 0.5 + number // 20)}\n")
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
    for name, form in names.items():
        model = library.resolve(name, said, (form,))
        assert verify.problems(model, said)[1] == []
        assert model.form(form) is not None
    assert len(library.all()) == 2
    assert [path for path in library.models.iterdir() if ".partial" in path.name] == []
