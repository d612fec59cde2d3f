"""Sizes in bytes, formatted for people."""

from __future__ import annotations


def format_gigabytes(count: int) -> str:
    """Return "16.2 GB"."""
    return f"{count / 1e9:.1f} GB"


def format_short(count: int) -> str:
    """Return "98 MB", "9.8 GB" or "98 GB", in six characters at most."""
    if count < 1e9:
        return f"{count / 1e6:.0f} MB"
    return f"{count / 1e9:.1f} GB" if count < 9.95e9 else f"{count / 1e9:.0f} GB"


def format_bytes(count: float) -> str:
    """Return "98.4 MB", in the unit that fits."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
