"""The cost of drawing Markdown as it streams: `python tests/perf/markdown.py` prints the share of a core.

A text comes at 200 tokens a second for some seconds, as from a model; the time that the writer's calls take
on the processor is summed up.
"""

from __future__ import annotations

import argparse
import os
import time
from itertools import cycle, islice

from localspec.cli.talk.markdown import MarkdownWriter

TEXT = """## How it works

A hash table **maps keys** to values: it computes an *index* from the key, and looks there.

1. Compute `hash(key)`.
2. Take the remainder by the number of buckets.
3. Search that bucket.

```python
class Table:
    def __init__(self, size: int = 64) -> None:
        self.buckets = [[] for _ in range(size)]

    def get(self, key: str) -> int | None:
        for known, value in self.buckets[hash(key) % len(self.buckets)]:
            if known == key:
                return value
        return None
```

| operation | average | worst |
| --- | --- | --- |
| get | O(1) | O(n) |
| set | O(1) | O(n) |

"""
CHARACTERS = 4  # of a token


def share(rate: int, seconds: float) -> float:
    """Return which share of a core drawing takes while `rate` tokens a second come."""
    pieces = [TEXT[at : at + CHARACTERS] for at in range(0, len(TEXT), CHARACTERS)]
    spent = 0.0
    with open(os.devnull, "w", encoding="utf-8") as out:
        writer = MarkdownWriter(out)
        writer.push(TEXT)  # imports
        started = time.perf_counter()
        for number, piece in enumerate(islice(cycle(pieces), int(rate * seconds))):
            time.sleep(max(0.0, started + number / rate - time.perf_counter()))
            before = time.thread_time()
            writer.push(piece)
            spent += time.thread_time() - before
        writer.end()
    return spent / (time.perf_counter() - started)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=200, help="tokens a second")
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    found = share(given.rate, given.seconds)
    print(f"{found:.1%} of a core at {given.rate} tokens a second")


if __name__ == "__main__":
    main()
