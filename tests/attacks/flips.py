"""Flip random bits in each kind of kept file, and ask the same question again.

`python tests/attacks/flips.py [--count 100] [KIND ...]` prints a line for each kind: how many starts gave the
same answer, how many ended in an error, and how many gave another answer without a word.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attacks.killing import IMPORT, Attacked, Command

BITS = 10
CHAT = Command(
    ("chat", "small", "hello hello", "--raw", "--max-tokens", "8", "--json", "--session", "s")
    + ("--engine", "openvino", "--draft", "ngram"),
    (IMPORT,),
)
KINDS: Mapping[str, str] = {  # patterns below the root
    "manifest": "home/models/small/model.toml",
    "configs": "home/models/small/*config*.json",
    "tokenizer": "home/models/small/tokenizer.json",
    "graph": "home/models/small/openvino_model.xml",
    "weights": "home/models/small/openvino_model.bin",
    "gguf": "home/models/small/*.gguf",
    "compiled graph": "home/compiled/*/cpu/*/*",
    "probes": "home/probes/*.json",
    "conversations": "home/sessions.db",
}


class Asked(Attacked):
    """A home with all kinds of kept files, and the answer of the command that made them."""

    def __init__(self, gguf: Path, base: Path) -> None:
        super().__init__(CHAT, gguf, base)
        shutil.rmtree(self._start)
        shutil.copytree(self.root, self._start, symlinks=True)
        self.answer = self.ask()

    def ask(self) -> dict[str, Any] | None:
        """Ask again; return the answer's tokens, None after an error."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "localspec", *self.arguments],
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if done.returncode or b"Traceback" in done.stderr:
            assert b"Traceback" not in done.stderr, done.stderr.decode()
            return None
        found = json.loads(done.stdout)
        return {name: found[name] for name in ("text", "token_ids", "prompt_tokens", "finish_reason")}

    def flipped(self, kind: str, seed: int) -> str:
        """Flip bits in one file of a kind; return "same", "told" or "different"."""
        self.reset()
        draw = random.Random(f"{kind} {seed}")
        files = sorted(path for path in self.root.glob(KINDS[kind]) if path.is_file())
        file = draw.choice(files)
        content = bytearray(file.read_bytes())
        for _ in range(BITS):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        file.write_bytes(content)
        answer = self.ask()
        return "told" if answer is None else "same" if answer == self.answer else "different"


def main() -> None:
    """Attack the kinds that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--count", type=int, default=100)
    given = parser.parse_args()
    import tiny

    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder).resolve()
        asked = Asked(tiny.write_gguf(tiny.make("llama"), base / "tiny.gguf"), base)
        for kind in given.kinds or KINDS:
            found = Counter(asked.flipped(kind, seed) for seed in range(given.count))
            print(f"{kind:15} {found['same']:4} same {found['told']:4} told {found['different']:4} different")


if __name__ == "__main__":
    main()
