"""The command that installs an extra fits how this copy was installed, in fake environments."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from localspec import errors, installation

GGUF = "llama-cpp-python<0.4,>=0.3.36"


@dataclass
class Copy:
    """A fake installed copy: what it came from, and its requirements."""

    origin: dict[str, Any] | str | None = None
    requires: list[str] = field(default_factory=lambda: ["numpy>=1", f"{GGUF}; extra == 'gguf'"])

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return json.dumps(self.origin) if isinstance(self.origin, dict) else self.origin


class Environment:
    """A fake environment, with pip on the path."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.prefix, self.packages = folder, {"localspec": Copy(), "pip": Copy()}
        folder.mkdir()
        patch.setattr(sys, "prefix", str(folder))
        patch.setattr(sys, "executable", str(folder / "bin" / "python"))
        patch.setattr(installation, "distribution", self._distribution)
        patch.setattr(installation.shutil, "which", lambda name: str(folder / "bin" / name))
        patch.delenv("VIRTUAL_ENV", raising=False)

    def _distribution(self, name: str) -> Copy:
        if name not in self.packages:
            raise PackageNotFoundError(name)
        return self.packages[name]

    def came_from(self, path: Path, **facts: Any) -> None:
        self.packages["localspec"] = Copy({"url": path.as_uri()} | facts)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    return Environment(tmp_path / "env", monkeypatch)


def test_a_copy_from_an_index(environment: Environment) -> None:
    assert installation.install_command("gguf") == "pip install 'localspec[gguf]'"
    assert installation.install_command() == "pip install localspec"
    assert installation.install_command("gguf", "protobuf") == "pip install 'localspec[gguf]' protobuf"
    assert errors.MissingExtra("x", "gguf").hint == "Type `pip install 'localspec[gguf]'`"


@pytest.mark.parametrize("origin", ["{", "[]", '{"url": 3}'])
def test_a_damaged_record_counts_as_an_index(environment: Environment, origin: str) -> None:
    environment.packages["localspec"] = Copy(origin)
    assert installation.install_command("gguf") == "pip install 'localspec[gguf]'"


def test_a_copy_that_is_not_installed(environment: Environment) -> None:
    del environment.packages["localspec"]
    assert installation.install_command("gguf") == "pip install 'localspec[gguf]'"


@pytest.mark.parametrize(("editable", "flags"), [(False, []), (True, ["-e"])])
def test_a_folder_is_installed_again(
    environment: Environment, tmp_path: Path, editable: bool, flags: list[str]
) -> None:
    folder = tmp_path / "my checkout"
    folder.mkdir()
    environment.came_from(folder, dir_info={"editable": editable} if editable else {})
    words = shlex.split(installation.install_command("gguf"))
    assert words == ["pip", "install", *flags, f"{folder}[gguf]"]


def test_a_wheel_is_installed_again_while_it_exists(environment: Environment, tmp_path: Path) -> None:
    wheel = tmp_path / "localspec-1-py3-none-any.whl"
    environment.came_from(wheel, archive_info={})
    assert shlex.split(installation.install_command("gguf")) == ["pip", "install", GGUF]
    wheel.touch()
    assert shlex.split(installation.install_command("gguf")) == ["pip", "install", f"{wheel}[gguf]"]


def test_an_address_and_a_repository_are_named(environment: Environment) -> None:
    origin: dict[str, Any] = {"url": "https://example.org/x.whl", "archive_info": {}}
    environment.packages["localspec"] = Copy(origin)
    requirement = "localspec[gguf] @ https://example.org/x.whl"
    assert shlex.split(installation.install_command("gguf")) == ["pip", "install", requirement]
    environment.packages["localspec"] = Copy({"url": "https://example.org/x", "vcs_info": {"vcs": "git"}})
    requirement = "localspec[gguf] @ git+https://example.org/x"
    assert shlex.split(installation.install_command("gguf")) == ["pip", "install", requirement]


def test_a_tool_of_uv_keeps_its_extras(environment: Environment) -> None:
    receipt = environment.prefix / "uv-receipt.toml"
    receipt.write_text('[tool]\nrequirements = [{ name = "localspec", extras = ["quant"] }]\n')
    assert installation.install_command("gguf") == "uv tool install 'localspec[gguf,quant]'"
    receipt.write_text("[")
    assert installation.install_command("gguf") == "uv tool install 'localspec[gguf]'"
    more = installation.install_command("gguf", "protobuf")
    assert more == "uv tool install 'localspec[gguf]' --with protobuf"


def test_pipx_adds_the_requirements_to_its_environment(environment: Environment, tmp_path: Path) -> None:
    (environment.prefix / "pipx_metadata.json").write_text("{}")
    environment.came_from(tmp_path)
    assert shlex.split(installation.install_command("gguf")) == ["pipx", "inject", "env", GGUF]


def test_an_environment_without_pip_is_one_of_uv(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    del environment.packages["pip"]
    python = str(environment.prefix / "bin" / "python")
    words = shlex.split(installation.install_command("gguf"))
    assert words == ["uv", "pip", "install", "--python", python, "localspec[gguf]"]
    monkeypatch.setenv("VIRTUAL_ENV", str(environment.prefix))
    assert installation.install_command("gguf") == "uv pip install 'localspec[gguf]'"


def test_another_pip_on_the_path_is_not_used(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation.shutil, "which", lambda name: "/elsewhere/pip")
    python = str(environment.prefix / "bin" / "python")
    words = shlex.split(installation.install_command("gguf"))
    assert words == [python, "-m", "pip", "install", "localspec[gguf]"]


def test_windows_takes_double_quotes(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "WINDOWS", True)
    assert installation.install_command("gguf") == 'pip install "localspec[gguf]"'
    assert installation.install_command() == "pip install localspec"
