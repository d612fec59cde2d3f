"""PyTorch: any transformers causal model on a CPU, a CUDA or Apple GPU, or Intel Gaudi."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from localspec.core.contracts import Engine, HiddenStates, Session
from localspec.core.sessions import HiddenStateBuffer, SplitSession
from localspec.core.types import Logits, Tokens
from localspec.engines.torch import kv_cache
from localspec.errors import ContextFull, UnsupportedModel, not_together
from localspec.formats.files import NO_LIMIT
from localspec.formats.graph import layer_split
from localspec.formats.huggingface import early_exit
from localspec.formats.huggingface.loading import check_extra, load
from localspec.formats.huggingface.torch_devices import find_device, memory_errors, natural_dtype
from localspec.formats.model_file import count_parameters
from localspec.plugins import Option

ATTENTION = {"full_attention", "sliding_attention", "chunked_attention", "attention"}  # all is in the keys
MEMORIES = ("past_key_values", "cache_params", "state")  # what families call their cache
RESTART = 4  # a recurrent text is read anew when the new tokens are a quarter of it


class Torch(Engine):
    """Runs a transformers causal model with PyTorch; engines on one file share its weights.

    A GGUF file is run with the values its tensors stand for, without their compression. `auto` takes CUDA,
    else Gaudi, else Apple's GPU, else the CPU, and computes in float32 on a CPU, in bfloat16 or float16
    elsewhere. Gaudi has passes of a few fixed shapes; that path was not run on hardware.
    """

    forms = ("safetensors", "gguf")

    def __init__(
        self,
        model: Path,
        *,
        device: Annotated[str, Option("auto, cpu, cuda, cuda:1, hpu or mps")] = "auto",
        precision: Annotated[str, Option("arithmetic", choices=("auto", "f32", "bf16", "f16"))] = "auto",
        threads: Annotated[int, Option("CPU threads, 0 for PyTorch's choice", least=0, most=1024)] = 0,
        exit: Annotated[int, Option("the layer that a draft may leave at, 0 for none", least=0)] = 0,
        hidden: Annotated[bool, Option("show the last hidden states")] = False,
    ) -> None:
        if exit and hidden:
            raise not_together("exit", "hidden")
        check_extra()
        import torch

        if exit:
            layer_split.check(model, exit)
        self.path = model
        self.device, self.place = find_device(device)
        self.static = self.device.startswith("hpu")
        self.threads = threads
        kinds = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
        self.kind = natural_dtype(self.place) if precision == "auto" else kinds[precision]
        with memory_errors(self.place, model.name):
            self.model = load(model, self.place, self.kind)
        self._accepts = frozenset(inspect.signature(self.model.forward).parameters)
        self.config = self.model.config.get_text_config(decoder=True)
        self.context = int(getattr(self.config, "max_position_embeddings", None) or NO_LIMIT)
        head = self.model.get_output_embeddings()
        self.vocab = int(self.config.vocab_size if head is None else head.weight.shape[0])
        self.cache_name = next((name for name in MEMORIES if name in self._accepts), "")
        types = set(getattr(self.config, "layer_types", None) or ())
        stateful = getattr(self.model, "_is_stateful", False) or self.cache_name != MEMORIES[0]
        self.recurrent = stateful or bool(types - ATTENTION)
        self.continues = False  # may a pass of several tokens follow a state?
        self.lock = threading.Lock()  # a Gaudi records one graph at a time
        self._check()
        self.parts = self._in_parts(exit) if exit else None
        self.hidden = hidden
        if hidden and (self.recurrent or self.static):
            raise UnsupportedModel(
                f"`{model}` shows no hidden states with the torch engine on {self.device}",
                "Run it with another engine: `localspec parts engines`",
            )

    @classmethod
    def weighs(cls, path: Path, **options: Any) -> int:
        """Return the bytes of all weights at the precision they will have."""
        halved = not str(options.get("device", "auto")).startswith(("cpu", "auto"))
        precision = options.get("precision", "auto")
        half = precision in ("bf16", "f16") or (precision == "auto" and halved)
        return count_parameters(path) * (2 if half else 4)

    def session(self) -> Session:
        """Return a new, empty session with a cache of its own."""
        if self.parts:
            return TorchSplitSession(self, self.parts)
        if self.hidden:
            return TorchHiddenSession(self)
        if self.recurrent:
            return RecurrentSession(self)
        return StaticSession(self) if self.static else GrowingSession(self)

    def _check(self) -> None:
        chunked = "chunked_attention" in (getattr(self.config, "layer_types", None) or ())
        if not self.cache_name or (self.static and (self.recurrent or chunked)):
            raise self.unreachable()
        if self.recurrent:
            self.continues = _continues(self)

    def _in_parts(self, layer: int) -> layer_split.Parts:
        """Return the model cut after `layer`, its weights those of the whole; tried on a few tokens."""
        if not (self.recurrent or self.static) and (parts := early_exit.split(self.model, layer)):
            text = [(7 * place + 1) % self.vocab for place in range(19)]
            found = [
                session.forward(text, 19)
                for session in (GrowingSession(self), TorchSplitSession(self, parts))
            ]
            if np.abs(found[0] - found[1]).max() < _rounding(self) * found[0].std():
                return parts
        raise UnsupportedModel(
            f"`{self.path}` cannot be left at a layer with the torch engine on {self.device}",
            "Run it without an exit, or with another engine: `localspec parts engines`",
        )

    def unreachable(self) -> UnsupportedModel:
        """Say that the model cannot be rewound."""
        return UnsupportedModel(
            f"`{self.path}` keeps its state where the torch engine cannot reach it on {self.device}",
            "Run it with another engine or device: `localspec parts engines`",
        )

    def accepted(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return those of the arguments that the model takes, and set its threads."""
        if self.threads:
            _use_threads(self.threads)
        return {name: value for name, value in given.items() if name in self._accepts}

    def run(self, given: dict[str, Any], rows: Any) -> Any:
        """Return the logits [rows, vocab] of one pass; `rows` is their number or their places."""
        given = self.accepted(given)
        if isinstance(rows, int) and not rows:
            self.model.base_model(**given)
            return None
        if "logits_to_keep" in self._accepts:
            given["logits_to_keep"] = max(rows, 1) if isinstance(rows, int) else rows
        logits = self.model(**given).logits[0]
        return logits[-rows:] if isinstance(rows, int) else logits


class TorchSession(Session):
    """What the sessions share: limits, and the way of the rows to numpy."""

    def __init__(self, engine: Torch) -> None:
        import torch

        self._torch = torch
        self._engine = engine
        self._numpy = ToNumpy()

    def _empty(self) -> Logits:
        return np.empty((0, self._engine.vocab), np.float32)

    def _limit(self, total: int) -> None:
        if total > self._engine.context:
            raise ContextFull(total, self._engine.context)


class ToNumpy:
    """Takes logits from a device into the computer's memory, through one pinned buffer."""

    def __init__(self) -> None:
        self._pinned: Any = None

    def __call__(self, logits: Any) -> Logits:
        """Return logits as float32 in the computer's memory: a view of them where they are that already."""
        if logits.device.type != "cuda":
            rows: Logits = logits.cpu().float().numpy()
            return rows
        import torch

        count = logits.shape[0]
        if self._pinned is None or len(self._pinned) < count:
            self._pinned = torch.empty(logits.shape, dtype=torch.float32, pin_memory=True)
        self._pinned[:count].copy_(logits, non_blocking=True)
        torch.cuda.current_stream(logits.device).synchronize()
        pinned: Logits = self._pinned[:count].numpy()
        return pinned


class Growing:
    """Keys and values of every token of a text, in buffers that grow, and the arguments of its passes."""

    def __init__(self, engine: Torch) -> None:
        self._engine = engine
        self.extent = kv_cache.Extent(0, engine.context)
        self._cache = kv_cache.cache(self.extent)
        types = getattr(engine.config, "layer_types", None) or ()
        windows = (getattr(engine.config, name, None) for name in ("sliding_window", "attention_chunk_size"))
        limited = any(windows) if not types else set(types) - {"full_attention", "attention"}
        self._masked = not limited and getattr(engine.config, "_attn_implementation", "") == "sdpa"

    def given(self, count: int) -> dict[str, Any]:
        """Return the arguments of a pass over `count` tokens behind the text, but for the tokens."""
        import torch

        past, total = self.extent.length, self.extent.length + count
        positions = torch.arange(past, total, device=self._engine.place)
        return {
            "attention_mask": self._mask(positions, total),
            "position_ids": positions[None],
            "cache_position": positions,
            "past_key_values": self._cache,
            "use_cache": True,
        }

    def _mask(self, positions: Any, total: int) -> Any:
        """Return what each new token sees [1, 1, new, total], or None where transformers needs no mask."""
        import torch

        if not self._masked or len(positions) in (1, total):
            return None
        return (torch.arange(total, device=positions.device) <= positions[:, None])[None, None]


class GrowingSession(TorchSession):
    """A text of which every key is kept: a rewind is a number."""

    def __init__(self, engine: Torch) -> None:
        super().__init__(engine)
        self._memory = Growing(engine)

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return logits [rows, vocab]."""
        torch, engine, extent = self._torch, self._engine, self._memory.extent
        total = extent.length + len(tokens)
        self._limit(total)
        if not tokens:
            return self._empty()
        with torch.inference_mode(), memory_errors(engine.place, f"a text of {total} tokens"):
            ids = torch.tensor([tokens], device=engine.place)
            logits = self._run(self._memory.given(len(tokens)) | {"input_ids": ids}, rows)
            found = self._numpy(logits) if rows else self._empty()
        extent.length = total
        return found

    def _run(self, given: dict[str, Any], rows: int) -> Any:
        return self._engine.run(given, rows)

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens; what lies behind is written over by the next pass."""
        extent = self._memory.extent
        extent.length = min(length, extent.length)
        return extent.length


class TorchHiddenSession(GrowingSession, HiddenStates):
    """A text of which the last hidden states are kept beside every key."""

    def __init__(self, engine: Torch) -> None:
        super().__init__(engine)
        self._states = HiddenStateBuffer()

    def hidden(self) -> Logits:
        """Return a view on the hidden states [tokens, width] of the text."""
        return self._states.first(self._memory.extent.length)

    def _run(self, given: dict[str, Any], rows: int) -> Any:
        outputs = self._engine.model(**self._engine.accepted(given), output_hidden_states=True)
        self._states.put(self._memory.extent.length, outputs.hidden_states[-1][0].cpu().float().numpy())
        return outputs.logits[0][-rows:]


class TorchSplitSession(SplitSession):
    """A text of which every key is kept, in a model of three parts."""

    def __init__(self, engine: Torch, parts: layer_split.Parts) -> None:
        super().__init__(engine.context, engine.vocab)
        self._engine = engine
        self._parts = parts
        self._memory = Growing(engine)
        self._numpy = ToNumpy()

    def _first(self, tokens: Tokens, at: int) -> Sequence[Any]:
        import torch

        ids = torch.tensor([tokens], device=self._engine.place)
        return list(self._pass(self._parts.first, at, len(tokens), input_ids=ids))

    def _rest(self, hidden: Sequence[Any], at: int, rows: int) -> Logits:
        import torch

        last = self._pass(self._parts.rest, at, len(hidden), inputs_embeds=torch.stack(list(hidden))[None])
        return self._leave(list(last[len(hidden) - rows :]))

    def _leave(self, hidden: Sequence[Any]) -> Logits:
        import torch

        if not hidden:
            return np.empty((0, self._vocab), np.float32)
        given = {"inputs_embeds": torch.stack(list(hidden))[None], "use_cache": False}
        with torch.inference_mode():
            return self._numpy(self._parts.head(**self._engine.accepted(given)).logits[0])

    def _pass(self, part: Any, at: int, count: int, **inputs: Any) -> Any:
        """Return what leaves a part's last layer [count, width] in a pass over the tokens from `at` on."""
        import torch

        self._memory.extent.length = at
        place, total = self._engine.place, at + count
        with torch.inference_mode(), memory_errors(place, f"a text of {total} tokens"):
            given = self._engine.accepted(self._memory.given(count) | inputs)
            return part.base_model(**given).last_hidden_state[0]


class StaticSession(TorchSession):
    """Passes of a few fixed shapes over buffers of fixed lengths, for devices that compile each shape.

    A pass is padded to one of `kv.WIDTHS`; the keys of padding lie behind the text and are written over by
    the next pass. Buffers double when they are full, which makes new shapes. Not run on hardware.
    """

    def __init__(self, engine: Torch) -> None:
        super().__init__(engine)
        self._extent = kv_cache.Extent(0, 0)
        self._cache = kv_cache.cache(self._extent)
        self._read: Any = None  # the pass, recorded once its buffers are there

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return logits [rows, vocab]."""
        kept, total = self._extent.length, self._extent.length + len(tokens)
        self._limit(total)
        found = []
        with self._torch.inference_mode(), self._engine.lock:
            try:
                for start in range(0, len(tokens), kv_cache.WIDTHS[-1]):
                    part = tokens[start : start + kv_cache.WIDTHS[-1]]
                    behind = len(tokens) - start - len(part)
                    found.append(self._pass(part, min(len(part), max(0, rows - behind))))
            except BaseException:
                self._extent.length = kept
                raise
        return np.concatenate([self._empty(), *found])

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens; what lies behind is written over by the next pass."""
        self._extent.length = min(length, self._extent.length)
        return self._extent.length

    def _pass(self, tokens: Tokens, rows: int) -> Logits:
        torch, engine, extent = self._torch, self._engine, self._extent
        count, width, past = len(tokens), kv_cache.bucket(len(tokens)), extent.length
        fresh = past + width > extent.most
        if fresh:
            extent.most = kv_cache.grown(extent.most, past + width, engine.context + kv_cache.WIDTHS[-1])
            self._read = kv_cache.fixed_pass(engine.run, engine.config, extent, self._cache)
        first = count - max(rows, 1)
        places = [min(first + row, width - 1) for row in range(kv_cache.bucket(max(rows, 1)))]
        slots = torch.arange(past, past + width)
        given = (torch.tensor([[*tokens, *[0] * (width - count)]]), slots, torch.tensor(places))
        logits = self._read(*(values.to(engine.place) for values in given))
        kv_cache.mark_step()
        if fresh:
            self._read = kv_cache.recorded(self._read)
        extent.length = past + count
        return self._numpy(logits)[:rows]


class RecurrentSession(TorchSession):
    """A text whose state cannot be cut: it goes back to checkpoints, taken where passes begin.

    Most families read several tokens after a state wrongly or not at all; theirs come one at a time, or
    the whole text anew when that is less work.
    """

    def __init__(self, engine: Torch) -> None:
        super().__init__(engine)
        self._broken = False  # a pass was interrupted: the state is of no known text
        self._start_over()

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return logits [rows, vocab]."""
        total = len(self._tokens) + len(tokens)
        self._limit(total)
        if not tokens:
            return self._empty()
        assert not self._broken, "rewind first"
        text, count = [*self._tokens, *tokens], len(tokens)
        with self._torch.inference_mode(), memory_errors(self._engine.place, f"a text of {total} tokens"):
            if self._memory is None or (not self._engine.continues and total <= RESTART * count):
                self._start_over()
                found = [self._pass(text, rows)]
            elif self._engine.continues:
                found = [self._pass(list(tokens), rows)]
            else:
                found = [self._pass([token], int(count - at <= rows)) for at, token in enumerate(tokens)]
        return np.concatenate(found) if len(found) > 1 else found[0]

    def rewind(self, length: int) -> int:
        """Go back to the last checkpoint that holds no more than `length` tokens."""
        if length >= len(self._tokens) and not self._broken:
            return len(self._tokens)
        with self._torch.inference_mode():
            kept = self._checkpoints.back(length)
        if not kept:
            self._start_over()
        del self._tokens[kept:]
        self._broken = False
        return kept

    def _start_over(self) -> None:
        self._memory: Any = None
        self._tokens: list[int] = []
        self._checkpoints = kv_cache.Checkpoints()
        self._broken = False

    def _pass(self, tokens: list[int], rows: int) -> Logits:
        if self._tokens:
            self._checkpoints.keep(self._memory, len(self._tokens))
        self._broken = True
        ids = self._torch.tensor([tokens], device=self._engine.place)
        given = kv_cache.step(
            self._engine.model, self._engine.cache_name, self._memory, ids, len(self._tokens)
        )
        given["logits_to_keep"] = max(rows, 1)
        outputs = self._engine.model(**self._engine.accepted(given))
        self._memory = next((found for name in MEMORIES if (found := outputs.get(name)) is not None), None)
        if self._memory is None:
            raise self._engine.unreachable()
        found = self._numpy(outputs.logits[0][-rows:]) if rows else self._empty()
        self._tokens += tokens
        self._broken = False
        return found


def _continues(engine: Torch) -> bool:
    """Tell whether a pass of several tokens after a state reads them as one pass each would.

    Several families silently forget their state then, in one release of transformers and not in the next.
    """
    text = [(7 * place + 1) % engine.vocab for place in range(19)]
    rows = []
    for engine.continues in (True, False):
        session = RecurrentSession(engine)
        session.forward(text[:16], 1)
        try:
            rows.append(session.forward(text[16:], 3))
        except (RuntimeError, ValueError, IndexError):
            return False
    several, single = rows
    return bool(np.abs(several - single).max() < _rounding(engine) * single.std())


def _rounding(engine: Torch) -> float:
    import torch

    return 1e-3 if engine.kind == torch.float32 else 0.1


def _use_threads(count: int) -> None:
    import torch

    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
