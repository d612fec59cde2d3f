"""Remove the layers that a draft can do without."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from localspec.drafting.agreement import estimate_speedup
from localspec.drafting.build_step import Artifact, BuildContext, BuildStep
from localspec.drafting.speedup import Speedup, interpolated_costs
from localspec.errors import BadValue
from localspec.formats.files import copy_configs, read_json
from localspec.formats.graph import surgery
from localspec.formats.graph.ir import save
from localspec.formats.graph.paged import read_stateful
from localspec.formats.graph.runner import GraphRunner, median_pass_seconds
from localspec.library.model import GRAPH, write_json
from localspec.plugins import Option
from localspec.steps.prune.layer_selection import angular_distances, block_influence, removal_candidates

AUTO = "auto"
STRIDE = 2  # between two numbers of layers that are tried
MAX_WORSE = 2  # the search ends after this many numbers in a row with a lower estimate
RANKING_TEXTS = 8  # texts whose hidden states rank the layers


class Trial(NamedTuple):
    """A set of layers to remove, with the estimated speed-up and the agreement without them."""

    dropped: frozenset[int]
    estimate: Speedup
    agreement: float


class Prune(BuildStep):
    """Removes the layers that a draft can do without; the first and the last are kept.

    Candidates are the block of layers that changes the hidden states least (Gromov et al. 2024) and the
    single layers that change them least (ShortGPT). Of two candidates with equally many layers it removes the
    one that leaves more agreement with the target's own texts; their number is the one with the highest
    estimated speed-up, from measured acceptance and costs.
    """

    def __init__(
        self,
        context: BuildContext,
        *,
        layers: Annotated[str, Option("how many to keep, which ones (0-6+17-23), or auto")] = AUTO,
    ) -> None:
        self._context = context
        self._requested = None if layers == AUTO else _parse_layers(layers)

    def run(self, source: Artifact, into: Path) -> Artifact:
        """Write the graph without the layers; raises BadValue for a number of layers that cannot be kept."""
        model = read_stateful(source.folder / GRAPH)
        layers = surgery.count_layers(model)
        self.check(layers)
        dropped, facts = self._choose_layers(model, layers, source.folder.name)
        surgery.drop_layers(model, dropped)
        save(model, into)
        copy_configs(source.folder, into)
        config = read_json(into / "config.json")
        write_json(into / "config.json", config | {"num_hidden_layers": layers - len(dropped)})
        kept = [layer for layer in range(layers) if layer not in dropped]
        self._context.say(f"Kept {len(kept)} of {layers} layers; removed {format_layers(dropped)}")
        return Artifact(into, source.facts | {"layers": kept, "of_layers": layers} | facts)

    def check(self, layers: int) -> None:
        """Raise BadValue for layers that cannot be kept."""
        if isinstance(self._requested, frozenset):
            if not {0, layers - 1} <= self._requested <= set(range(layers)):
                raise BadValue(
                    f"`layers` of `prune` is {format_layers(self._requested)} and the model has {layers}",
                    f"Choose from 0 to {layers - 1}; the first and the last layer must be kept",
                )
        elif self._requested is not None and not 2 <= self._requested <= layers:
            raise BadValue(
                f"`layers` of `prune` is {self._requested} and the model has {layers}",
                f"Give a number from 2 to {layers}; the first and the last layer must be kept",
            )

    def _choose_layers(self, model: Any, layers: int, name: str) -> tuple[frozenset[int], dict[str, Any]]:
        """Return the layers to remove from the artifact `name`, and the estimated speed-up."""
        if isinstance(self._requested, frozenset):
            return frozenset(range(layers)) - self._requested, {}
        if self._requested == layers or layers < 3:
            return frozenset(), {}
        with self._context.step("Choosing the layers to remove"):
            best = self._search(model, layers, name)
        return best.dropped, {"predicted": best.estimate._asdict()}

    def _search(self, model: Any, layers: int, name: str) -> Trial:
        """Try ever more layers to remove, until the estimates get worse, and return the best trial."""
        candidates = self._candidates(model)
        counts: Sequence[int] = range(0, layers - 1, STRIDE)
        if isinstance(self._requested, int):
            counts = [layers - self._requested]
        half = range(1, 1 + (layers - 1) // 2)
        full, reduced = self._context.measured_once(
            name, lambda: median_pass_seconds(GraphRunner(model), _without(model, half))
        )
        best: Trial | None = None
        worse = 0
        for count in counts:
            seconds = interpolated_costs(full, reduced, count / len(half))
            trials = [self._try(model, dropped, seconds) for dropped in candidates(count)]
            trial = max(trials, key=lambda trial: trial.agreement)  # equally many layers cost the same
            if best is None or trial.estimate.speedup > best.estimate.speedup:
                best, worse = trial, 0
            else:
                worse += 1
            if worse == MAX_WORSE:
                break
        assert best is not None
        return best

    def _candidates(self, model: Any) -> Callable[[int], list[frozenset[int]]]:
        """Return a function from a number of layers to the candidates for removal."""
        runner = GraphRunner(model, hidden=True)
        texts = self._context.target_texts()[:RANKING_TEXTS]
        states = [runner.hidden_states([*text.prompt, *text.answer]) for text in texts]
        sizes = np.array([of_text.shape[1] for of_text in states], float)
        distances = np.average([angular_distances(of_text) for of_text in states], axis=0, weights=sizes)
        influence = np.average([block_influence(of_text) for of_text in states], axis=0, weights=sizes)
        return lambda count: removal_candidates(distances, list(influence), count) if count else [frozenset()]

    def _try(self, model: Any, dropped: frozenset[int], seconds: list[float]) -> Trial:
        estimate, share = estimate_speedup(self._context, _without(model, dropped).logits, seconds)
        what = f"Without {format_layers(dropped)}" if dropped else "With all layers"
        self._context.say(
            f"{what}: {share:.0%} agreement, {estimate.speedup:.2f} times as fast"
            f" at draft length {estimate.draft_length}"
        )
        return Trial(dropped, estimate, share)


def _without(model: Any, dropped: Collection[int]) -> GraphRunner:
    own = model.clone()
    surgery.drop_layers(own, dropped)
    return GraphRunner(own)


def _parse_layers(text: str) -> int | frozenset[int]:
    """Parse a number of layers, or a list of layers: `22`, `0-6+17-23`."""
    try:
        if "-" not in text and "+" not in text:
            return int(text)
        parts = [part.partition("-") for part in text.split("+")]
        ends = [(int(first), int(last or first)) for first, _, last in parts]
        return frozenset(layer for first, last in ends for layer in range(first, last + 1))
    except ValueError:
        hint = "It takes a whole number, layers such as `0-6+17-23`, or `auto`"
        raise BadValue(f"`layers` of `prune` is `{text}`", hint) from None


def format_layers(layers: Collection[int]) -> str:
    """Format layers as ranges: `layers 3 to 5, 9`."""
    ranges: list[list[int]] = []
    for layer in sorted(layers):
        if ranges and ranges[-1][-1] == layer - 1:
            ranges[-1].append(layer)
        else:
            ranges.append([layer])
    shown = [str(part[0]) if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in ranges]
    return "layers " + ", ".join(shown) if shown else "none"
