"""The head of a draft loses the tokens that the target hardly ever writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from localspec.drafting.agreement import agreed
from localspec.drafting.build_step import Artifact, BuildContext, BuildStep, Text
from localspec.drafting.speedup import between, worth
from localspec.errors import BadValue
from localspec.formats.files import copy_configs
from localspec.formats.graph import surgery
from localspec.formats.graph.ir import save
from localspec.formats.graph.paged import read_stateful
from localspec.formats.graph.runner import GraphRunner, median_pass_seconds
from localspec.library.model import GRAPH
from localspec.plugins import Option

if TYPE_CHECKING:
    from tokenizers import Tokenizer

AUTO, ALL = "auto", "all"
SIZES = (16_384, 32_768, 65_536)  # numbers of tokens that are tried


class TrimVocab(BuildStep):
    """Keeps the head's rows for tokens that the target writes or may write; the embedding stays whole.

    FR-Spec (Zhao et al. 2025) ranks tokens by how often a corpus has them. Here a token's rank is the better
    of that among the target's own answers and of its number, as byte-pair tokens are numbered by how often
    they were merged; special tokens are kept. Logits keep their width: what is left out is never guessed.
    """

    def __init__(
        self,
        site: BuildContext,
        *,
        tokens: Annotated[str, Option("how many are kept, all, or auto for what pays most")] = AUTO,
    ) -> None:
        self._site = site
        self._asked = tokens if tokens in (AUTO, ALL) else _count(tokens)

    def run(self, source: Artifact, into: Path) -> Artifact:
        """Write the graph with the smaller head; raises BadValue for more tokens than there are."""
        model = read_stateful(source.folder / GRAPH)
        vocab = int(model.output("logits").get_partial_shape()[-1].get_length())
        kept, found = self._chosen(model, source.folder, vocab)
        if kept is not None:
            surgery.trim_head(model, kept)
        save(model, into)
        copy_configs(source.folder, into)
        count = vocab if kept is None else len(kept)
        self._site.say(f"The head keeps {count:,} of {vocab:,} tokens")
        return Artifact(into, source.facts | {"tokens": count, "of_tokens": vocab} | found)

    def _chosen(
        self, model: Any, folder: Path, vocab: int
    ) -> tuple[NDArray[np.int64] | None, dict[str, Any]]:
        """Return the tokens that are kept, None for all of them, and what is promised with them."""
        if self._asked == ALL:
            return None, {}
        if isinstance(self._asked, int) and self._asked > vocab:
            raise BadValue(
                f"`tokens` of `trim_vocab` is {self._asked} and the model has {vocab}", "Give fewer, or `all`"
            )
        from tokenizers import Tokenizer

        order = ranked(Tokenizer.from_file(str(folder / "tokenizer.json")), self._site.texts(), vocab)
        if isinstance(self._asked, int):
            return np.sort(order[: self._asked]), {}
        sizes = [size for size in SIZES if size < vocab]
        if not sizes:
            return None, {}
        kept = [np.sort(order[:size]) for size in sizes]
        reading, passes = GraphRunner(model), self._site.passes()
        whole, least = self._site.once(folder.name, lambda: median_pass_seconds(reading, _trimmed(model, kept[0])))
        stood = agreed(self._site.texts(), reading.logits, [*kept, None])
        promised = [
            worth(texts, between(whole, least, (vocab - size) / (vocab - sizes[0])), passes)
            for size, texts in zip((*sizes, vocab), stood, strict=True)
        ]
        best = max(range(len(promised)), key=lambda at: promised[at].speed_up)
        return [*kept, None][best], {"predicted": promised[best]._asdict()}


def _trimmed(model: Any, tokens: NDArray[np.int64]) -> GraphRunner:
    own = model.clone()
    surgery.trim_head(own, tokens)
    return GraphRunner(own)


def ranked(tokenizer: Tokenizer, texts: Sequence[Text], vocab: int) -> NDArray[np.int64]:
    """Return all tokens, the likeliest to be written first: special ones, then by the better of two ranks."""
    counts = Counter(token for text in texts for token in (*text.prompt, *text.answer))
    rank = np.arange(vocab, dtype=np.int64)
    for place, (token, _) in enumerate(counts.most_common()):
        rank[token] = min(rank[token], place)
    special = [token for token in tokenizer.get_added_tokens_decoder() if token < vocab]
    rank[special] = -1
    return np.argsort(rank, kind="stable")


def _count(text: str) -> int:
    try:
        found = int(text)
    except ValueError:
        found = 0
    if found < 1:
        raise BadValue(f"`tokens` of `trim_vocab` is `{text}`", "It takes a number above 0, `all` or `auto`")
    return found
