"""Times as users and clients write them: 30s, 10m, 1h."""

from __future__ import annotations

import re

from localspec.errors import BadValue, printable

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}  # seconds
FORM = re.compile(r"(-?\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|)")


def seconds_of(text: str, name: str) -> float:
    """Return the seconds of a time, infinity for one below 0; raises BadValue that names the setting."""
    found = FORM.fullmatch(text.strip())
    if found is None:
        raise BadValue(f"`{name}` is no time: `{printable(text, 40)}`", "Such as 30s, 10m or 1h; -1 for ever")
    seconds = float(found[1]) * UNITS[found[2]]
    return seconds if seconds >= 0 else float("inf")
