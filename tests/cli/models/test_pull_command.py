"""`localspec pull` as a process, against a hub on loopback."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import loopback
import pytest
import tiny
from command import COMMAND, SECONDS, WITH_FILE_LIMIT, Localspec, Ran, Terminal
from loopback import Trouble

DEAD = "http://127.0.0.1:9"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[loopback.Hub]:
    """A hub with tiny versions of Qwen3 8B in every format, and of its draft."""
    gguf = tiny.write_gguf(tiny.make("llama", "Q8_0"), tmp_path / "q4.gguf").read_bytes()
    with loopback.serving_hub() as found:
        found.repositories = {
            "OpenVINO/Qwen3-8B-int4-ov": loopback.openvino_files(b"4" * 200_000),
            "OpenVINO/Qwen3-8B-int8-ov": loopback.openvino_files(b"8" * 300_000),
            "OpenVINO/Qwen3-0.6B-int4-ov": loopback.openvino_files(b"0" * 1000),
            "Qwen/Qwen3-8B-GGUF": {"Qwen3-8B-Q4_K_M.gguf": gguf},
            "Qwen/Qwen3-8B": loopback.safetensors_files(),
        }
        yield found


class Puller:
    """Runs `localspec pull` with a library and a cache of its own."""

    def __init__(self, localspec: Localspec, hub: loopback.Hub, folder: Path) -> None:
        self.localspec, self.hub = localspec, hub
        self.variables = loopback.environment(hub, folder)

    def __call__(self, *arguments: str, **more: Any) -> Ran:
        return self.localspec.run("pull", *arguments, **(self.variables | more))

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*COMMAND, "pull", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.localspec.environment(**self.variables),
        )


@pytest.fixture
def pull(fresh: Localspec, hub: loopback.Hub, tmp_path: Path) -> Puller:
    return Puller(fresh, hub, tmp_path)


def test_a_model_and_its_draft(pull: Puller) -> None:
    found = pull("qwen3-8b", "--with-draft")
    assert found.code == 0, found.err
    models = pull.localspec.home / "models"
    names = [line.split("  ")[0] for line in found.out.splitlines()]
    assert names == ["qwen3-8b", "qwen3-0.6b"]
    assert all((models / name / "model.toml").is_file() for name in names)
    said = found.err.splitlines()
    size = sum(map(len, pull.hub.repositories["OpenVINO/Qwen3-8B-int4-ov"].values())) / 1e3
    takes = f"Qwen3 8B from hf:OpenVINO/Qwen3-8B-int4-ov; downloading {size:.1f} kB of {size:.1f} kB, "
    assert said[0].startswith(takes)
    assert said[0].endswith(" free; needs about 5.6 GB of memory to run")
    assert said[1:3] == ["Downloading OpenVINO/Qwen3-8B-int4-ov", "Checking openvino_model.bin"]
    files = [len(pull.hub.repositories[f"OpenVINO/Qwen3-{one}-int4-ov"]) for one in ("8B", "0.6B")]
    assert len(pull.hub.asked) == sum(files) + 2  # a question and the files of each, and nothing else
    assert said[3].startswith("Qwen3 0.6B from hf:OpenVINO/Qwen3-0.6B-int4-ov; ")
    again = pull("qwen3-8b", "--with-draft", "--offline", HF_ENDPOINT=DEAD)
    assert (again.code, again.out, again.err) == (0, found.out, "")
    online = pull("qwen3:8b", "--with-draft", HF_ENDPOINT=DEAD)
    assert (online.code, online.out, online.err) == (0, found.out, "")


def test_json_lists_the_downloaded_models(pull: Puller) -> None:
    [found] = json.loads(pull("qwen3-8b:int8", "--json").out)
    assert found["name"] == "qwen3-8b-int8"
    assert found["source"].startswith("hf:OpenVINO/Qwen3-8B-int8-ov@")
    assert Path(found["folder"], "openvino_model.bin").read_bytes() == b"8" * 300_000
    assert found["bytes"] > 300_000


@pytest.mark.parametrize(
    ("format", "formats", "file"),
    [("hf", ["safetensors"], "model.safetensors"), ("gguf", ["gguf"], "Q4_K_M.gguf")],
)
def test_a_chosen_format_is_not_converted(pull: Puller, format: str, formats: list[str], file: str) -> None:
    found = pull("qwen3-8b", "--format", format)
    assert found.code == 0, found.err
    assert any(path.endswith(file) for path, _ in pull.hub.downloads())
    assert not list(pull.localspec.home.rglob("openvino_model.*"))
    [listed] = json.loads(pull.localspec.run("list", "--json").out)
    assert listed["formats"] == formats


def test_the_size_of_a_download_is_shown(pull: Puller) -> None:
    found = pull("hf:Qwen/Qwen3-8B-GGUF", "--json")
    assert found.code == 0, found.err
    size = len(pull.hub.repositories["Qwen/Qwen3-8B-GGUF"]["Qwen3-8B-Q4_K_M.gguf"])
    first = found.err.splitlines()[0]
    assert first.startswith(
        f"hf:Qwen/Qwen3-8B-GGUF; downloading {size / 1e6:.1f} MB of {size / 1e6:.1f} MB, "
    )


def test_a_progress_bar_shows_speed_and_remaining_time(
    pull: Puller, terminal: Callable[..., Terminal]
) -> None:
    pull.hub.piece, pull.hub.pause = 20_000, 0.2
    shown = terminal(pull.localspec, "pull", "qwen3-8b", **pull.variables)
    shown.until("Downloading OpenVINO/Qwen3-8B-int4-ov")
    shown.until("B/s")
    shown.until(" left")
    assert shown.end() == 0


def test_two_processes_download_once(pull: Puller) -> None:
    pull.hub.piece, pull.hub.pause = 20_000, 0.2
    first = pull.start("qwen3-8b")
    while not pull.hub.downloads():
        assert first.poll() is None
        time.sleep(0.02)
    second = pull("qwen3-8b")
    out, err = first.communicate(timeout=SECONDS)
    assert (first.returncode, second.code) == (0, 0), err
    assert second.out == out.decode()
    assert second.err == "Another localspec is using `qwen3-8b`; waiting for it\n"
    paths = [path for path, _ in pull.hub.downloads()]
    assert len(paths) == len(set(paths))


def test_ctrl_c_keeps_the_partial_download(pull: Puller) -> None:
    pull.hub.piece, pull.hub.pause = 20_000, 0.2
    process = pull.start("qwen3-8b")
    while pull.hub.sent < 100_000:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in err
    assert pull.localspec.names() == set()
    pull.hub.pause = 0
    pull.hub.asked.clear()
    assert pull("qwen3-8b").code == 0
    [area] = [area for path, area in pull.hub.downloads() if path.endswith("openvino_model.bin")]
    assert area is not None
    assert int(area[6:-1]) >= 60_000


def test_a_busy_hub(pull: Puller) -> None:
    pull.hub.troubles += [Trouble(429, {"Retry-After": "1"}), Trouble(429, {"Retry-After": "900"})]
    host = pull.hub.url.removeprefix("http://")
    found = pull("hf:OpenVINO/Qwen3-8B-int4-ov")
    found.refused(1, f"Rate limited by `{host}` (429)", "retry after 900 seconds", "Try again in 900 seconds")
    assert f"Rate limited by `{host}` (429); retrying in 1 s, 4 retries left\n" in found.err


def test_a_hub_that_is_briefly_down(pull: Puller) -> None:
    pull.hub.troubles += [Trouble(503, path="/resolve/")]
    pull.hub.stalled = 3
    found = pull("qwen3-8b", HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert found.code == 0, found.err
    assert "returned status 503; retrying in 1 s" in found.err
    assert "sent nothing for 1 seconds; retrying in" in found.err


def test_a_wrong_digest(pull: Puller) -> None:
    pull.hub.digests["openvino_model.bin"] = "cd" * 32
    pull("qwen3-8b").refused(1, "`openvino_model.bin` is not the expected file", "It was deleted")
    assert pull.localspec.names() == set()
    pull.hub.digests.clear()
    assert pull("qwen3-8b").code == 0


def test_a_forbidden_repository(pull: Puller, tmp_path: Path) -> None:
    name = "OpenVINO/Qwen3-8B-int4-ov"
    pull.hub.gated.add(name)
    page = f"{pull.hub.url}/{name}"
    pull(f"hf:{name}").refused(1, "requires an access token", f"Accept its terms at {page}", "hf auth login")
    pull(f"hf:{name}", HF_TOKEN="hf_abc").refused(1, "the token of `HF_TOKEN` has no access", page)
    (tmp_path / "no token").write_text("hf_login")
    pull(f"hf:{name}").refused(1, "the token of `hf auth login` has no access", page)


def test_a_missing_repository(pull: Puller, tmp_path: Path) -> None:
    pull("hf:o/none").refused(1, "Unknown repository `o/none`", "Check the spelling")
    cache = str(tmp_path / "hub cache")
    pull("hf:o/none", "--offline").refused(1, f"is not in the cache `{cache}`", "Leave out `--offline`")
    pull("hf:o/none", HF_ENDPOINT=DEAD).refused(1, "Cannot connect to `127.0.0.1:9`", "Check the connection")
    pull("qwen3-32b").refused(1, "All 2 sources failed", "Check the spelling")


@pytest.mark.parametrize(
    ("name", "code", "said", "hint"),
    [
        ("my model", 1, "Unknown model `my model`", "hint: "),
        ("模型", 1, "Unknown model `模型`", "hint: "),
        ("..", 1, "`..` has no .safetensors files", "Give the folder of a model"),
        ("hf:../..", 2, "`hf:../..` is not a source of models", "Write `hf:OWNER/NAME`"),
        ("qwen3-8", 1, "Unknown model `qwen3-8`", "Did you mean `qwen3-8b`"),
    ],
)
def test_invalid_names(pull: Puller, name: str, code: int, said: str, hint: str) -> None:
    pull(name).refused(code, said, hint)
    assert pull.hub.asked == []


def test_invalid_options(pull: Puller) -> None:
    pull("qwen3-8b", "--precision", "int5").refused(2, "`--precision` is `int5`", "It takes int4, int8, fp16")
    pull("qwen3-8b", "--format", "onnx").refused(2, "`--format` is `onnx`", "It takes openvino, gguf, hf")
    pull("llama-3.2-1b", "--format", "openvino").refused(2, "No openvino build of", "Available: gguf")
    pull("hf:o/m", "--with-draft").refused(2, "No draft for `hf:o/m` is known", "prune-draft")
    assert pull.hub.asked == []


def test_a_data_folder_that_cannot_be_written(pull: Puller, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    pull("qwen3-8b", LOCALSPEC_HOME=str(tmp_path / "file" / "x")).refused(
        1, "cannot be written", "LOCALSPEC_HOME"
    )
    pull("qwen3-8b", HF_HUB_CACHE=str(tmp_path / "file" / "x")).refused(
        1, "cannot be written", "HF_HUB_CACHE"
    )


def test_a_disk_that_fills_up(pull: Puller) -> None:
    found = pull("qwen3-8b", before=(*COMMAND[:1], "-c", WITH_FILE_LIMIT, "100000"))
    found.refused(1, "cannot hold a file that large", "HF_HUB_CACHE")
    assert pull.localspec.names() == set()
    assert pull("qwen3-8b").code == 0
