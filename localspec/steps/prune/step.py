"""Layers that a draft can do without are taken out of its graph."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from localspec.drafting.agreement import promise
from localspec.drafting.build_step import Artifact, BuildContext, BuildStep
from localspec.drafting.speedup import Worth, between
from localspec.errors import BadValue
from localspec.formats.files import copy_configs, read_json
from localspec.formats.graph import surgery
from localspec.formats.graph.ir import save
from localspec.formats.graph.paged import read_stateful
from localspec.formats.graph.runner import GraphRunner, median_pass_seconds
from localspec.library.model import GRAPH, write_json
from localspec.plugins import Option
from localspec.steps.prune.layer_selection import angles, candidates, influences

AUTO = "auto"
STRIDE = 2  # layers between two numbers of layers that are tried
ENOUGH = 2  # numbers in a row that promise less than the best one end the search
STATED = 8  # texts whose states rank the layers


class Prune(BuildStep):
    """Takes out the layers that a draft can do without, the first and the last kept.

    Candidates are the block of layers through which a text turns least (Gromov et al. 2024) and the layers
    that turn it least one by one (ShortGPT). Of as many layers the cut that agrees more with the target's own
    texts is chosen, and their number by the highest speed-up promised, from measured acceptance and costs.
    """

    def __init__(
        self,
        site: BuildContext,
        *,
        layers: Annotated[str, Option("how many are kept, which ones (0-6+17-23), or auto")] = AUTO,
    ) -> None:
        self._site = site
        self._asked = None if layers == AUTO else _parsed(layers)

    def run(self, source: Artifact, into: Path) -> Artifact:
        """Write the graph without the layers; raises BadValue for a number of layers that cannot be kept."""
        model = read_stateful(source.folder / GRAPH)
        layers = surgery.count_layers(model)
        self.check(layers)
        dropped, found = self._chosen(model, layers, source.folder.name)
        surgery.drop_layers(model, dropped)
        save(model, into)
        copy_configs(source.folder, into)
        config = read_json(into / "config.json")
        write_json(into / "config.json", config | {"num_hidden_layers": layers - len(dropped)})
        kept = [layer for layer in range(layers) if layer not in dropped]
        self._site.say(f"{len(kept)} of {layers} layers are kept, without {_ranges(sorted(dropped))}")
        return Artifact(into, source.facts | {"layers": kept, "of_layers": layers} | found)

    def check(self, layers: int) -> None:
        """Raise BadValue for layers that cannot be kept."""
        if isinstance(self._asked, frozenset):
            if not {0, layers - 1} <= self._asked <= set(range(layers)):
                raise BadValue(
                    f"`layers` of `prune` names {_ranges(sorted(self._asked))} and the model has {layers}",
                    f"Name some of 0 to {layers - 1}: the first and the last layer stay",
                )
        elif self._asked is not None and not 2 <= self._asked <= layers:
            raise BadValue(
                f"`layers` of `prune` is {self._asked} and the model has {layers}",
                f"Give a number from 2 to {layers}: the first and the last layer stay",
            )

    def _chosen(self, model: Any, layers: int, name: str) -> tuple[frozenset[int], dict[str, Any]]:
        """Return the layers of what is called `name` that go, and what is promised without them."""
        if isinstance(self._asked, frozenset):
            return frozenset(range(layers)) - self._asked, {}
        if self._asked == layers or layers < 3:
            return frozenset(), {}
        ranked = self._ranked(model)
        counts = range(0, layers - 1, STRIDE) if self._asked is None else [layers - self._asked]
        best: tuple[Worth, float, frozenset[int]] | None = None
        worse = 0
        half = range(1, 1 + (layers - 1) // 2)
        self._site.step("Trying which layers can go")
        whole, least = self._site.once(name, lambda: median_pass_seconds(GraphRunner(model), _without(model, half)))
        for count in counts:
            seconds = between(whole, least, count / len(half))
            tried = [(*self._worth(model, drop, seconds), drop) for drop in ranked(count)]
            top = max(tried, key=lambda found: found[1])  # so many layers cost the same, whichever they are
            if best is None or top[0].speed_up > best[0].speed_up:
                best, worse = top, 0
            else:
                worse += 1
            if worse == ENOUGH:
                break
        assert best is not None
        return best[2], {"predicted": best[0]._asdict()}

    def _ranked(self, model: Any) -> Any:
        """Return a function from a number of layers to the candidates that may go."""
        reading = GraphRunner(model, hidden=True)
        found = [reading.hidden_states([*text.prompt, *text.answer]) for text in self._site.texts()[:STATED]]
        sizes = np.array([states.shape[1] for states in found], float)
        turns = np.average([angles(states) for states in found], axis=0, weights=sizes)
        turned = np.average([influences(states) for states in found], axis=0, weights=sizes)
        return lambda count: candidates(turns, list(turned), count) if count else [frozenset()]

    def _worth(self, model: Any, dropped: frozenset[int], seconds: list[float]) -> tuple[Worth, float]:
        """Return what is promised without those layers, and the share of tokens that agree."""
        found, share = promise(self._site, _without(model, dropped).logits, seconds)
        self._site.say(
            f"without {_ranges(sorted(dropped))}: {share:.0%} agree, {found.speed_up:.2f} times at"
            f" {found.depth} guesses"
        )
        return found, share


def _without(model: Any, dropped: Collection[int]) -> GraphRunner:
    own = model.clone()
    surgery.drop_layers(own, dropped)
    return GraphRunner(own)


def _parsed(text: str) -> int | frozenset[int]:
    """Return how many layers a text says, or which ones: `22`, `0-6+17-23`."""
    try:
        if "-" not in text and "+" not in text:
            return int(text)
        parts = [part.partition("-") for part in text.split("+")]
        ends = [(int(first), int(last or first)) for first, _, last in parts]
        return frozenset(layer for first, last in ends for layer in range(first, last + 1))
    except ValueError:
        hint = "It takes a whole number, layers such as `0-6+17-23`, or `auto`"
        raise BadValue(f"`layers` of `prune` is `{text}`", hint) from None


def _ranges(layers: list[int]) -> str:
    """Return layers in words: `3 to 5, 9`."""
    parts: list[list[int]] = []
    for layer in layers:
        if parts and parts[-1][-1] == layer - 1:
            parts[-1].append(layer)
        else:
            parts.append([layer])
    shown = [str(part[0]) if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts]
    return "layers " + ", ".join(shown) if shown else "none"
