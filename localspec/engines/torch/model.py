"""A transformers model on a torch device, and its passes."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path
from typing import Any

from localspec.decoder.forward import Decoder
from localspec.decoder.loading import of_file, table_of
from localspec.errors import UnsupportedModel
from localspec.formats.files import NO_LIMIT
from localspec.formats.huggingface.loading import load
from localspec.formats.huggingface.torch_devices import find_device, memory_errors, natural_dtype, use_threads

# attention kinds of layers whose whole state is in their keys and values
ATTENTION = {"full_attention", "sliding_attention", "chunked_attention", "attention"}
PLAIN, TABLE = "plain", "table"
MEMORIES = ("past_key_values", "cache_params", "state")  # what model families call their cache


class TorchModel:
    """A transformers causal model with its weights on a device, or a decoder of our own with compressed ones.

    `form` is that of the weights; one other than PLAIN has a `decoder` and no `model`, and TABLE neither, but
    the embedding alone, for a head.
    `recurrent` tells that its state cannot be cut, `static` that its device compiles each shape, `cache_name`
    what its family calls the cache. `continues` tells whether a recurrent state may be followed by a pass
    over several tokens.
    """

    def __init__(self, path: Path, device: str, precision: str, threads: int, form: str) -> None:
        import torch

        self.path, self.form = path, form
        self.device, self.place = find_device(device)
        self.static = self.device.startswith("hpu")
        self.threads = threads
        dtypes = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
        self.dtype = natural_dtype(self.place) if precision == "auto" else dtypes[precision]
        self.continues = self.recurrent = False
        self.lock = threading.Lock()  # a Gaudi records one graph at a time
        self.decoder: Decoder | None = None
        with memory_errors(self.place, path.name):
            if form == PLAIN:
                self._load(path)
            elif form == TABLE:
                self._table = table_of(path, self.place, self.dtype)
            else:
                self.decoder = of_file(path, self.place, self.dtype, form)
                self.vocab, self.context = self.decoder.weights.head.rows, self.decoder.shape.context

    def _load(self, path: Path) -> None:
        """Load transformers' model, and note what its family can do."""
        self.model = load(path, self.place, self.dtype)
        self._accepts = frozenset(inspect.signature(self.model.forward).parameters)
        self.config = self.model.config.get_text_config(decoder=True)
        self.context = int(getattr(self.config, "max_position_embeddings", None) or NO_LIMIT)
        head = self.model.get_output_embeddings()
        self.vocab = int(self.config.vocab_size if head is None else head.weight.shape[0])
        self.cache_name = next((name for name in MEMORIES if name in self._accepts), "")
        types = set(getattr(self.config, "layer_types", None) or ())
        stateful = getattr(self.model, "_is_stateful", False) or self.cache_name != MEMORIES[0]
        self.recurrent = stateful or bool(types - ATTENTION)

    @property
    def table(self) -> Any:
        """The embedding [vocab, width]."""
        return self._table if self.form == TABLE else self.model.get_input_embeddings().weight

    @property
    def masked(self) -> bool:
        """Whether all layers take the same attention mask, a boolean one of the caller's."""
        types = getattr(self.config, "layer_types", None) or ()
        windows = (getattr(self.config, name, None) for name in ("sliding_window", "attention_chunk_size"))
        limited = any(windows) if not types else set(types) - {"full_attention", "attention"}
        return not limited and getattr(self.config, "_attn_implementation", "") == "sdpa"

    def check_reads(self, whose: str, width: int, layers: int, vocab: int, command: str) -> None:
        """Raise UnsupportedModel unless what was made for a model of this shape can be read with this one."""
        if self.recurrent or self.static or not self.masked:
            raise UnsupportedModel(
                f"`{self.path}` reads no {whose} with the torch engine on {self.device}",
                "Leave out `--decoding`, or choose another `--draft`: `localspec parts drafters`",
            )
        own = self.config.hidden_size, self.config.num_hidden_layers, self.vocab
        if (width, layers, vocab) != own:
            raise UnsupportedModel(
                f"The {whose} are for a model of {layers} layers, {width} columns and "
                f"{vocab:,} tokens, and `{self.path}` has {own[1]}, {own[0]} and {own[2]:,}",
                f"Train some for it: `{command}`",
            )

    def unreachable(self) -> UnsupportedModel:
        """Return the error for a model that cannot be rewound."""
        return UnsupportedModel(
            f"`{self.path}` keeps its state where the torch engine cannot reach it on {self.device}",
            "Run it with another engine or device: `localspec parts engines`",
        )

    def accepted(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments that the model takes, and set its threads."""
        if self.threads:
            use_threads(self.threads)
        return {name: value for name, value in given.items() if name in self._accepts}

    def run(self, given: dict[str, Any], rows: Any, view: Any = None) -> Any:
        """Return the logits [rows, vocab] of one pass; `rows` is their number or their positions.

        A `view` of the model is run in its place.
        """
        given, model = self.accepted(given), view or self.model
        if isinstance(rows, int) and not rows:
            model.base_model(**given)
            return None
        if "logits_to_keep" in self._accepts:
            given["logits_to_keep"] = max(rows, 1) if isinstance(rows, int) else rows
        logits = model(**given).logits[0]
        return logits[-rows:] if isinstance(rows, int) else logits
