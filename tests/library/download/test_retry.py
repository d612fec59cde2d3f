"""A hub that is rate limited, fails, is silent, or breaks the connection."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import loopback
import pytest
from loopback import Trouble

from localspec.errors import NetworkError
from localspec.library.download import hub as hub_module
from localspec.library.download.fetch import fetch_first
from localspec.library.sources import Source

OPENVINO = loopback.openvino_files(bytes(5000))


def fetch(text: str, said: Any) -> Any:
    return hub_module.fetch(Source.parse(text), said)


def test_a_killed_download_resumes(hub: Any, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(256)) * 4000
    hub.repositories["o/m"] = {"m.Q4_K_M.gguf": data}
    hub.cut_after = 300_000
    monkeypatch.setattr("localspec.library.download.retry.sleep", killed)
    with pytest.raises(KeyboardInterrupt):
        fetch("hf:o/m", said)
    hub.cut_after = None
    hub.asked.clear()
    hub.sent = 0
    taken: list[Any] = []
    found = hub_module.fetch(Source.parse("hf:o/m"), said, on_size=taken.append)
    assert found.path.read_bytes() == data
    [(_, area)] = hub.downloads()
    assert area is not None
    start = int(area.removeprefix("bytes=").removesuffix("-"))
    assert 200_000 < start <= 300_000
    assert hub.sent == len(data) - start
    assert [(one.download, one.size) for one in taken] == [(hub.sent, len(data))]


def killed(seconds: float) -> None:
    """Simulate a process that is killed while it waits for a retry."""
    raise KeyboardInterrupt


def test_a_broken_connection_is_resumed(hub: Any, said: Any, waited: list[float]) -> None:
    data = bytes(range(256)) * 4000
    hub.repositories["o/m"] = {"m.gguf": data}
    hub.cut_after = 150_000
    assert fetch("hf:o/m", said).path.read_bytes() == data
    starts = [int((area or "bytes=0-")[6:-1]) for _, area in hub.downloads()]
    assert starts == sorted(set(starts))  # each resumes where the previous one ended
    assert len(starts) >= 7
    assert set(waited) == {1.0}  # each received some bytes, which resets the retries
    assert said.lines[0] == f"The connection to `{host(hub)}` broke; retrying in 1 s, 4 retries left"


def host(hub: Any) -> str:
    return str(hub.url.removeprefix("http://"))


def test_a_connection_that_keeps_breaking_is_an_error(hub: Any, said: Any, waited: list[float]) -> None:
    hub.repositories["o/m"] = {"m.Q4_K_M.gguf": bytes(5000)}
    hub.cut_after = 0
    with pytest.raises(NetworkError, match=r"broke for `m\.Q4_K_M\.gguf` 5 times") as caught:
        fetch("hf:o/m", said)
    assert "the download resumes where it stopped" in str(caught.value.hint)


def test_a_stalled_connection_is_resumed(
    hub: Any, said: Any, monkeypatch: pytest.MonkeyPatch, waited: list[float]
) -> None:
    hub.repositories["o/m"] = {"m.gguf": bytes(5000)}
    hub.stalled = 2.0
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "0.3")
    assert fetch("hf:o/m", said).path.read_bytes() == bytes(5000)
    assert said.lines == [f"`{host(hub)}` sent nothing for 0.3 seconds; retrying in 1 s, 4 retries left"]
    assert waited == [1.0]


@pytest.mark.parametrize("where", ["/api/", "/resolve/"])
def test_retry_after_is_honoured(hub: Any, said: Any, waited: list[float], where: str) -> None:
    hub.repositories["o/m"] = OPENVINO
    hub.troubles += [Trouble(429, {"Retry-After": "7"}, where), Trouble(429, {}, where)]
    fetch("hf:o/m", said)
    assert waited == [7.0, 2.0]
    busy = f"Rate limited by `{host(hub)}` (429); retrying in "
    assert said.lines == [f"{busy}7 s, 4 retries left", f"{busy}2 s, 3 retries left"]


@pytest.mark.parametrize("value", ["\u00b2", "Mon, 99 Foo 99999999999 00:00:00 GMT", "-7", "soon", "7 s"])
def test_a_retry_after_that_is_none_is_ignored(hub: Any, said: Any, waited: list[float], value: str) -> None:
    hub.repositories["o/m"] = OPENVINO
    hub.troubles.append(Trouble(429, {"Retry-After": value}))
    fetch("hf:o/m", said)
    assert waited == [1.0]


def test_retry_after_may_be_a_date(hub: Any, said: Any, waited: list[float]) -> None:
    hub.repositories["o/m"] = OPENVINO
    then = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    hub.troubles.append(Trouble(429, {"Retry-After": then}))
    fetch("hf:o/m", said)
    assert 15 < waited[0] <= 20


@pytest.mark.parametrize(("asked", "times"), [("3", 4), ("3600", 0)])
def test_a_long_rate_limit_is_an_error_with_the_delay(
    hub: Any, said: Any, waited: list[float], asked: str, times: int
) -> None:
    hub.repositories["o/m"] = OPENVINO
    hub.troubles += [Trouble(429, {"Retry-After": asked}) for _ in range(9)]
    with pytest.raises(NetworkError, match=f"429.* for `o/m`, retry after {asked} seconds") as caught:
        fetch("hf:o/m", said)
    assert waited == [float(asked)] * times
    assert f"Try again in {asked} seconds" in str(caught.value.hint)


def test_several_sources_share_the_retries(hub: Any, said: Any, waited: list[float], tmp_path: Path) -> None:
    hub.troubles += [Trouble(503) for _ in range(99)]
    with pytest.raises(NetworkError, match="All 3 sources failed"):
        fetch_first([Source.parse(f"hf:o/m{number}") for number in range(3)], tmp_path, said)
    assert waited == [1.0, 2.0, 4.0, 8.0]


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_server_errors_are_retried(hub: Any, said: Any, waited: list[float], status: int) -> None:
    hub.repositories["o/m"] = OPENVINO
    hub.troubles += [Trouble(status, path="/api/"), Trouble(status, path="/resolve/")]
    fetch("hf:o/m", said)
    assert waited == [1.0, 2.0]
    hub.troubles += [Trouble(status) for _ in range(5)]
    with pytest.raises(NetworkError, match=f"returned status {status} for `o/other` 5 times"):
        fetch("hf:o/other", said)


def test_other_statuses_are_not_retried(hub: Any, said: Any, waited: list[float]) -> None:
    hub.troubles.append(Trouble(418))
    with pytest.raises(NetworkError, match="returned status 418 for `o/m`"):
        fetch("hf:o/m", said)
    assert waited == []
