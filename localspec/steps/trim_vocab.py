"""Remove the tokens that the target hardly ever writes from a draft's head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from localspec.drafting.agreement import token_agreement
from localspec.drafting.build_step import Artifact, BuildContext, BuildStep, TargetText
from localspec.drafting.speedup import Speedup, best_speedup, interpolated_costs
from localspec.errors import BadValue
from localspec.formats.files import copy_configs
from localspec.formats.graph import surgery
from localspec.formats.graph.ir import save
from localspec.formats.graph.paged import read_stateful
from localspec.formats.graph.runner import GraphRunner, median_pass_seconds
from localspec.formats.tokenizer.folder import open_folder
from localspec.library.model import GRAPH
from localspec.plugins import Option

if TYPE_CHECKING:
    from tokenizers import Tokenizer

AUTO, ALL = "auto", "all"
SIZES = (16_384, 32_768, 65_536)  # candidates for the number of tokens


class TrimVocab(BuildStep):
    """Keeps the head's rows of the tokens that the target is likely to write; the embedding stays complete.

    FR-Spec (Zhao et al. 2025) ranks tokens by their frequency in a corpus. Here a token's rank is the better
    of its rank in the target's own answers and its id, because byte-pair tokens are numbered in the order of
    their merges; special tokens are always kept. The logits keep their width: removed tokens are never
    guessed.
    """

    def __init__(
        self,
        context: BuildContext,
        *,
        tokens: Annotated[str, Option("how many to keep, all, or auto for the fastest")] = AUTO,
    ) -> None:
        self._context = context
        self._requested = tokens if tokens in (AUTO, ALL) else _parse_count(tokens)

    def run(self, source: Artifact, into: Path) -> Artifact:
        """Write the graph with the smaller head; raises BadValue for more tokens than the vocabulary has."""
        model = read_stateful(source.folder / GRAPH)
        vocab = int(model.output("logits").get_partial_shape()[-1].get_length())
        kept, facts = self._choose_tokens(model, source.folder, vocab)
        if kept is not None:
            surgery.trim_head(model, kept)
        save(model, into)
        copy_configs(source.folder, into)
        count = vocab if kept is None else len(kept)
        self._context.say(f"The head keeps {count:,} of {vocab:,} tokens")
        return Artifact(into, source.facts | {"tokens": count, "of_tokens": vocab} | facts)

    def _choose_tokens(
        self, model: Any, folder: Path, vocab: int
    ) -> tuple[NDArray[np.int64] | None, dict[str, Any]]:
        """Return the tokens to keep, None for all, and the estimated speed-up."""
        if self._requested == ALL:
            return None, {}
        if isinstance(self._requested, int) and self._requested > vocab:
            raise BadValue(
                f"`tokens` of `trim_vocab` is {self._requested} and the model has {vocab}",
                "Give fewer, or `all`",
            )
        tokenizer = open_folder(folder).tokenizer
        order = rank_tokens(tokenizer, self._context.target_texts(), vocab)
        if isinstance(self._requested, int):
            return np.sort(order[: self._requested]), {}
        candidates = [np.sort(order[:size]) for size in SIZES if size < vocab]
        if not candidates:
            return None, {}
        estimates = self._estimates(model, folder.name, vocab, candidates)
        best = max(range(len(estimates)), key=lambda at: estimates[at].speedup)
        return [*candidates, None][best], {"predicted": estimates[best]._asdict()}

    def _estimates(
        self, model: Any, name: str, vocab: int, candidates: Sequence[NDArray[np.int64]]
    ) -> list[Speedup]:
        """Return the estimated speed-up with each of `candidates`, smallest first, and with all tokens."""
        runner, target_seconds = GraphRunner(model), self._context.target_pass_seconds()
        full, reduced = self._context.measured_once(
            name, lambda: median_pass_seconds(runner, _trimmed(model, candidates[0]))
        )
        agreement = token_agreement(self._context.target_texts(), runner.logits, [*candidates, None])
        sizes, most_removed = [*map(len, candidates), vocab], vocab - len(candidates[0])
        return [
            best_speedup(
                texts, interpolated_costs(full, reduced, (vocab - size) / most_removed), target_seconds
            )
            for size, texts in zip(sizes, agreement, strict=True)
        ]


def _trimmed(model: Any, tokens: NDArray[np.int64]) -> GraphRunner:
    own = model.clone()
    surgery.trim_head(own, tokens)
    return GraphRunner(own)


def rank_tokens(tokenizer: Tokenizer, texts: Sequence[TargetText], vocab: int) -> NDArray[np.int64]:
    """Return all tokens, likeliest first: special ones, then by the better of rank in `texts` and id."""
    counts = Counter(token for text in texts for token in (*text.prompt, *text.answer))
    ranks = np.arange(vocab, dtype=np.int64)
    for rank, (token, _) in enumerate(counts.most_common()):
        ranks[token] = min(ranks[token], rank)
    special = [token for token in tokenizer.get_added_tokens_decoder() if token < vocab]
    ranks[special] = -1
    return np.argsort(ranks, kind="stable")


def _parse_count(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise BadValue(f"`tokens` of `trim_vocab` is `{text}`", "It takes a number above 0, `all` or `auto`")
    return count
