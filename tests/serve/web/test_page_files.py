"""The files of the page: by their names alone, without a key, with a policy that lets nothing in."""

from __future__ import annotations

import http.client
from contextlib import closing
from pathlib import Path

import pytest
from command import Localspec
from serving import Server

from localspec.serve import guard
from localspec.serve.web import routes

NAMES = sorted(path.name for path in routes.FOLDER.iterdir())


def get(server: Server, path: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    with closing(connection):
        connection.request("GET", path)
        response = connection.getresponse()
        return (
            response.status,
            {name.lower(): value for name, value in response.getheaders()},
            response.read(),
        )


def test_each_file_is_served() -> None:
    assert sorted(file.name for file in routes.FILES.values()) == NAMES
    assert set(routes.FILES) == {"/", *(f"/web/{name}" for name in NAMES if name != routes.INDEX)}
    assert set(routes.FILES) < guard.OPEN


@pytest.mark.parametrize("path", routes.FILES)
def test_a_file_has_its_type_and_the_policy(server: Server, path: str) -> None:
    status, headers, body = get(server, path)
    assert (status, body) == (200, routes.FILES[path].read_bytes())
    assert headers["content-type"] == routes.TYPES[routes.FILES[path].suffix]
    assert headers["x-content-type-options"] == "nosniff"
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


@pytest.mark.parametrize(
    "path", ["/web/", "/web/routes.py", "/web/../routes.py", "/web/%2e%2e/routes.py", "/web/none.js", "/page"]
)
def test_no_other_file_is_served(server: Server, path: str) -> None:
    assert get(server, path)[0] == 404


def test_the_page_needs_no_key_and_what_it_asks_does(localspec: Localspec) -> None:
    running = Server(localspec, "--api-key", "secret")
    assert [get(running, path)[0] for path in routes.FILES] == [200] * len(routes.FILES)
    assert [get(running, path)[0] for path in ("/v1/models", "/api/ps", "/metrics")] == [401] * 3
    assert running.stop() == 143


@pytest.mark.parametrize("name", NAMES)
def test_a_file_names_no_other_place(name: str) -> None:
    text = Path(routes.FOLDER / name).read_text("utf-8")
    assert "innerHTML" not in text
    found = {line.strip() for line in text.splitlines() if "http" in line and "www.w3.org" not in line}
    assert not [line for line in found if "http://" in line or "https://" in line]
