"""Commands that want the same place at once: one wins whole, the other says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import tiny

from localspec.disk import atomic
from localspec.library.importing.add_local import add_local
from localspec.library.progress import Silent
from localspec.library.store import Library


def test_two_exports_to_one_place(tmp_path: Path) -> None:
    library = Library(tmp_path / "home")
    add_local(library, tiny.write_gguf(tiny.make("llama"), tmp_path / "a.gguf"), "small", Silent())
    environment = os.environ | {"LOCALSPEC_HOME": str(library.home), "LOCALSPEC_CONFIG": os.devnull}
    command = [sys.executable, "-P", "-m", "localspec", "export", "small", "--to", "gguf", "-o", "out"]
    started = [
        subprocess.Popen(
            command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(3)
    ]
    said = [process.communicate()[1].decode() for process in started]
    codes = sorted(process.returncode for process in started)
    assert codes == [0, 2, 2], said
    assert sum("`out` already exists" in text for text in said) == 2
    names = {path.name for path in (tmp_path / "out").iterdir()}
    tokenizer = {"tokenizer.json", "tokenizer_config.json"}
    assert names == {"config.json", "generation_config.json", "model.gguf", *tokenizer}
    assert list(atomic.partials(tmp_path)) == []
