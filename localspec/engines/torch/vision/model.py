"""A model with eyes: transformers' modules look at pictures, and its text part is a decoder of our own."""

from __future__ import annotations

from typing import Any

from localspec.core.types import Picture
from localspec.decoder import loading
from localspec.decoder.card import decoder_of
from localspec.decoder.own import OwnDecoder
from localspec.decoder.passes import Recorder
from localspec.engines.torch.model import TorchModel
from localspec.engines.torch.vision.eyes import RecordedEyes
from localspec.engines.torch.vision.reader import Reader
from localspec.engines.torch.vision.replays import Replays
from localspec.formats.graph.architecture import of_folder
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.formats.huggingface.torch_devices import memory_errors, use_threads
from localspec.formats.vision import config, pixels, stored
from localspec.formats.vision.eyes import Eyes, Patches, Seen
from localspec.pictures.schedule import VisionTokens


class SeeingModel:
    """A model with eyes, as its sessions use it.

    `wanted` says how many visual tokens run in which layers, None lets all of them. Where all do, `own` is a
    decoder with recorded passes.
    """

    def __init__(self, engine: TorchModel, wanted: VisionTokens | None) -> None:
        if engine.static:
            raise engine.unreachable()
        folder = SafetensorsFolder.open(engine.path)
        self.shape = config.read(folder)
        self.engine, self.wanted = engine, wanted
        part = config.text_part(folder, engine.config.to_dict())
        weights = loading.weights_of(engine.model, of_folder(part), config.text_name)
        self.reader = Reader(decoder_of(weights))
        routed = wanted or engine.place.type not in ("cpu", "cuda")
        self.own = None if routed else OwnDecoder(self.reader.decoder, engine.context, (), engine.threads)
        self.place, self.context, self.vocab = engine.place, engine.context, engine.vocab
        card = wanted and self.place.type == "cuda"
        self.replays = Replays(self.reader, Recorder(self.place)) if card else None
        self.eyes = Eyes(engine.path, self.shape, self._see)
        self._recorded: RecordedEyes | None = None
        if wanted:
            wanted.schedule(self.reader.shape.layers, self.eyes.usual)  # refused before a picture comes

    def tokens_of(self, picture: Picture) -> int:
        """Return how many tokens stand for a picture; raises PromptError for one that is too slim."""
        return self.eyes.tokens_of(picture)

    def look(self, picture: Picture) -> Seen:
        """Return the embeddings of a picture, from memory if it was looked at lately; raises PromptError."""
        return self.eyes.look(picture)

    def _see(self, values: pixels.Array, patches: Patches | None) -> Any:
        """Return the embeddings [tokens, width] of a picture's values, on the device."""
        import torch

        engine = self.engine
        if engine.threads:
            use_threads(engine.threads)
        with torch.inference_mode(), memory_errors(self.place, "a picture"):
            if patches is None:
                found = self._square_seen(torch.from_numpy(values)[None].to(self.place, engine.dtype))
            else:
                grid = torch.tensor([[1, *patches]], device=self.place)
                inputs = torch.from_numpy(values).to(self.place, engine.dtype)
                found = stored.features_of(engine.model, inputs, image_grid_thw=grid)
            return found.to(engine.dtype)

    def _square_seen(self, values: Any) -> Any:
        """Return the embeddings of a LLaVA's picture, whose size is always the same; a card records that."""
        model = self.engine.model
        if self.place.type != "cuda":
            return stored.features_of(model, values)
        if self._recorded is None:
            recorder = self.own.recorder if self.own else None
            self._recorded = RecordedEyes(
                lambda pixels: stored.features_of(model, pixels), values, recorder or Recorder(self.place)
            )
        return self._recorded(values)
