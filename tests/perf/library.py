"""Time `localspec list` with many models: `python tests/perf/library.py [MODELS]`, 200 when not said.

The models are real manifests with eight small files each, half of them with a GGUF elsewhere, as imports have
them. Prints seconds of a whole process, median, fastest and slowest of some runs, and the processor's seconds
of a run, which depend less on what else the machine does; `localspec --help` is there for comparison.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from localspec.library import Manifest
from localspec.library.manifest import SourceFile, now
from localspec.library.storage import digest_of_text

FILES = (
    *("openvino_model.xml", "openvino_model.bin", "tokenizer.json", "tokenizer_config.json"),
    *("config.json", "generation_config.json", "chat_template.jinja", "special_tokens_map.json"),
)
RUNS = 9


def fill(home: Path, count: int) -> list[str]:
    """Put `count` models into the library below `home`; return their names."""
    weights = home / "elsewhere.gguf"
    home.mkdir(parents=True, exist_ok=True)
    weights.write_bytes(bytes(100))
    names = [f"model-{number:03}" for number in range(count)]
    for number, name in enumerate(names):
        folder = home / "models" / name
        folder.mkdir(parents=True)
        for file in FILES:
            (folder / file).write_bytes(bytes(number))
        linked = number % 2 == 0
        Manifest(
            name=name,
            source=f"file:{weights}",
            digests={file: digest_of_text(f"{name}/{file}") for file in FILES},
            sizes=dict.fromkeys(FILES, number),
            precision="int4",
            architecture="llama",
            context=4096,
            history=["imported from elsewhere.gguf"],
            created=now(),
            weights=str(weights) if linked else "",
            source_files=[SourceFile.of(weights)] if linked else [],
        ).write(folder)
    return names


def timed(home: Path, *arguments: str) -> str:
    """Run the command some times; return its seconds in words."""
    environment = os.environ | {"LOCALSPEC_HOME": str(home), "LOCALSPEC_CONFIG": os.devnull}
    seconds, before = [], os.times()
    for _ in range(RUNS):
        start = perf_counter()
        subprocess.run(
            [sys.executable, "-m", "localspec", *arguments], env=environment, check=True, capture_output=True
        )
        seconds.append(perf_counter() - start)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    median = statistics.median(seconds)
    return f"{median:.2f} ({min(seconds):.2f} to {max(seconds):.2f}), processor {used / RUNS:.2f}"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        fill(home, count)
        print(f"list, {count} models: {timed(home, 'list')}")
        print(f"--help: {timed(home, '--help')}")


if __name__ == "__main__":
    main()
