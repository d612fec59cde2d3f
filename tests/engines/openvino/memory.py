"""The memory of a process, as Linux reports it."""

from __future__ import annotations

import re
from pathlib import Path


def resident(file: Path) -> int:
    """Return the kilobytes of a mapped file that this process holds in memory."""
    mappings = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text("utf-8"), flags=re.M)
    own = [lines for lines in mappings if lines.partition("\n")[0].endswith(f" {file}")]
    return sum(int(found) for lines in own for found in re.findall(r"^Rss: +(\d+) kB", lines, flags=re.M))
