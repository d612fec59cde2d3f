"""The card of a model that was built, as sentences and a small table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localspec.cli.sizes import format_bytes

Card = Mapping[str, Any]


def format_card(name: str, target: str, card: Card) -> str:
    """Return the card of a model built for `target`, what it gains as a draft, and what to type next."""
    from localspec.build import no_gain

    if "target" not in card:
        lines = [f"{name}, built from {card['parent']}", *card_lines(card)]
        return "\n".join([*lines, f"hint: localspec chat {name}"])
    reason = no_gain(card)
    lines = [f"{name}, a draft for {target}", *card_lines(card)]
    if reason is None:
        return "\n".join([*lines, f"hint: localspec chat {target}  # --draft auto uses it"])
    hint = f"hint: localspec rm {name}  # or use it anyway: localspec chat {target} --draft {name}"
    return "\n".join([*lines, f"It gains nothing: {reason}", hint])


def card_lines(card: Card) -> list[str]:
    """Return what a draft is and what it gains, a line for each fact that its card has."""
    measured, predicted = card.get("measured"), card["predicted"]
    draft = "target" in card
    facts = {
        "layers": _part_of(card, "layers"),
        "tokens": _part_of(card, "tokens"),
        "weights": card["precision"],
        "agreement": f"{card['agreement']:.0%} of the {'target' if draft else 'parent'}'s tokens",
        "cost": f"{card['cost_ratio']:.2f} of a pass of the {'target' if draft else 'parent'}",
        "quality": f"perplexity {card['perplexity_ratio']:.2f} times that of its parent",
        "predicted": _predicted(predicted) if draft else "",
        "measured": _measured(measured) if measured else "",
    }
    return [f"  {title:<13}{fact}" for title, fact in facts.items() if fact]


def format_head(name: str, card: Card) -> str:
    """Return the card of a head, what it gains, and what to type next."""
    lines = [f"{name}, a head for {card['target']}", *head_lines(card)]
    if "predicted" not in card or card["predicted"]["draft_length"]:
        return "\n".join([*lines, f"hint: localspec chat {card['target']}  # --draft auto uses it"])
    hint = f"hint: localspec rm {name}  # or use it anyway: localspec chat {card['target']} --draft {name}"
    return "\n".join([*lines, "It gains nothing on this machine: more minutes make better heads", hint])


def format_hints(name: str, card: Card) -> str:
    """Return the card of hints, and what to type next."""
    hint = f"hint: localspec chat {card['target']} --draft k_forcing:name={name}"
    return "\n".join([f"{name}, hints for {card['target']}", *hint_lines(card), hint])


def hint_lines(card: Card) -> list[str]:
    """Return how many tokens a pass hints give, and how often these are right, a line for each fact."""
    facts = {"tokens a pass": f"{card['k']}" if "k" in card else ""}
    for title, key in (("greedy", "greedy_agreement"), ("sampled", "agreement")):
        rates = card.get(key)
        shown = " ".join(f"{rate:.0%}" for rate in rates or ())
        facts[title] = f"{sum(rates):.2f} tokens a pass are right, by place {shown}" if rates else ""
    if len(pair := card.get("perplexity", ())) == 2:
        facts["perplexity"] = f"{pair[1]:.2f} of sampled tokens, {pair[0]:.2f} of the model's own"
    facts["training"] = _training(card) if "steps" in card else ""
    return [f"  {title:<14}{fact}" for title, fact in facts.items() if fact]


def format_pairs(name: str, card: Card) -> str:
    """Return the card of weights of PIPO, and what to type next."""
    hint = f"hint: localspec chat {card['target']} --decoding pipo:name={name}"
    return "\n".join([f"{name}, weights of PIPO for {card['target']}", *pair_lines(card), hint])


def pair_lines(card: Card) -> list[str]:
    """Return how often tokens of pairs are the target's, a line for each fact and level of confidence."""
    facts = {}
    if rates := card.get("agreement"):
        facts["agreement"] = f"{rates[0]:.0%} of first tokens, {rates[1]:.0%} of second ones"
    for least, kept, right in card.get("levels", ()):
        facts[f"least={least:g}"] = f"{kept:.0%} of second tokens, {right:.0%} of them right"
    facts["training"] = _training(card) if "steps" in card else ""
    return [f"  {title:<14}{fact}" for title, fact in facts.items() if fact]


def head_lines(card: Card) -> list[str]:
    """Return what a head guesses and what it gains, a line for each fact that its card has."""
    rates = card.get("acceptance")
    facts = {
        "accepted": rates and f"{card['guesses']:.2f} of {len(rates)} guesses in a row",
        "by position": rates and " ".join(f"{rate:.0%}" for rate in rates),
        "sampled": f"{card['sampled_guesses']:.2f} at temperature 1" if "sampled_guesses" in card else "",
        "cost": f"{card['cost_ratio']:.2f} of a pass of the target" if "cost_ratio" in card else "",
        "predicted": _predicted(card["predicted"]) if "predicted" in card else "",
        "training": _training(card) if "steps" in card else "",
    }
    return [f"  {title:<13}{fact}" for title, fact in facts.items() if fact]


def _training(card: Card) -> str:
    minutes = max(card["seconds"] / 60, 0.1)
    return f"{card['steps']:,} steps on {card['texts']:,} texts in {minutes:.1f} minutes on {card['device']}"


def class_lines(card: Card) -> list[str]:
    """Return the agreement by the kind of text as a table, nothing if it was one kind."""
    classes = card.get("agreement_by_class", {})
    if len(classes) < 2:
        return []
    width = max(map(len, classes))
    rows = (f"    {kind:<{width}} {share:>5.0%}" for kind, share in classes.items())
    return ["  agreement by the kind of text", *rows]


def format_size(built: int, source: int) -> str:
    """Return the size of a model's weights beside that of the model it was made from."""
    return f"{format_bytes(built)} of weights instead of {format_bytes(source)}"


def _part_of(card: Card, what: str) -> str:
    """Return how many of the parent's layers or tokens remain, empty if the card does not tell."""
    kept = card.get(what)
    if kept is None:
        return ""
    count = kept if isinstance(kept, int) else len(kept)
    return f"{count:,} of {card[f'of_{what}']:,}"


def _predicted(predicted: Card) -> str:
    if not predicted["draft_length"]:
        return "no faster at any draft length"
    return f"{predicted['speedup']:.2f} times as fast, draft length {predicted['draft_length']}"


def _measured(measured: Card) -> str:
    other, texts = measured["different_texts"], measured["texts"]
    parity = "the same texts" if not other else f"{other} of {texts} texts differ"
    return f"{measured['speedup']:.2f} times as fast, {parity}"
