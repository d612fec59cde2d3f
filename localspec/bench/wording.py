"""The words of a benchmark's reports: counts, comparisons, and the name of the reference."""

from __future__ import annotations

from typing import Any

PLAIN = "plain"  # the backend that all others are compared with


def counted(number: int, word: str) -> str:
    """Return "1 prompt" or "12 prompts"."""
    return f"{number:,} {word}" + "s" * (number != 1)


def parities(report: dict[str, Any]) -> dict[str, str]:
    """Return, for each backend of a report but plain decoding, how its answers compare with plain ones."""
    others = {name: parity for name, parity in report["parity"].items() if name != PLAIN}
    return {name: _format_parity(parity) for name, parity in others.items()}


def _format_parity(parity: dict[str, Any]) -> str:
    failures, ties = len(parity["failures"]), parity["ties"]
    different = [_differ(failures, "")] * bool(failures) + [_differ(ties, " at a near tie")] * bool(ties)
    kind = "lossy: " if parity.get("lossy") else ""
    compared = f"{kind}{counted(parity['answers'], 'answer')} compared"
    return ", ".join([compared, *(different or ["none differs"])])


def _differ(count: int, where: str) -> str:
    return f"{count} differ{'s' * (count == 1)}{where}"
