"""The card of a draft that was built, as lines."""

from __future__ import annotations

from typing import Any


def format_card(name: str, target: str, card: dict[str, Any]) -> str:
    """Return the card of the draft `name` for `target`."""
    predicted = card["predicted"]
    layers, tokens = card.get("layers"), card.get("tokens")
    lines = [f"{name}, a draft for {target}"]
    if layers is not None:
        lines.append(f"  layers     {len(layers)} of {card['of_layers']}")
    if tokens is not None:
        lines.append(f"  tokens     {tokens:,} of {card['of_tokens']:,}")
    lines += [
        f"  weights    {card['precision']}",
        f"  agreement  {card['agreement']:.0%} of the target's tokens",
        f"  cost       {card['cost_ratio']:.2f} of a pass of the target",
        f"  predicted  {predicted['speedup']:.2f} times as fast, draft length {predicted['draft_length']}",
        *_measured(card),
        f"hint: localspec chat {target}  # --draft auto uses it",
    ]
    return "\n".join(lines)


def _measured(card: dict[str, Any]) -> list[str]:
    measured = card.get("measured")
    if measured is None:
        return []
    other, texts = measured["different_texts"], measured["texts"]
    parity = "the same texts" if not other else f"{other} of {texts} texts differ"
    return [f"  measured   {measured['speedup']:.2f} times as fast, {parity}"]
