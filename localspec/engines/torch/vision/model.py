"""A model with eyes: transformers' modules look at pictures, and its text part is a decoder of our own."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

from localspec.core.types import Picture
from localspec.decoder import loading
from localspec.decoder.card import decoder_of
from localspec.decoder.own import OwnDecoder
from localspec.decoder.passes import Recorder
from localspec.engines.torch.model import TorchModel
from localspec.engines.torch.vision.eyes import RecordedEyes
from localspec.engines.torch.vision.reader import Reader
from localspec.engines.torch.vision.replays import Replays
from localspec.errors import UnsupportedModel
from localspec.formats.graph.architecture import of_folder
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.formats.huggingface.torch_devices import memory_errors, use_threads
from localspec.formats.vision import config, pixels
from localspec.pictures.schedule import VisionTokens

TOWERS = ("clip_vision_model", "siglip_vision_model")  # of LLaVA models
LOOKED_AT = 8  # pictures whose embeddings are kept: a conversation reads them again and again


class Seen(NamedTuple):
    """A picture as embeddings `states` [tokens, width], in `rows` and `columns` of the picture."""

    digest: str
    states: Any
    rows: int
    columns: int


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
        eyes = engine.model.config.vision_config
        self._eyes = engine.model.config
        self.pixels = pixels.read(engine.path, self.shape.family, int(getattr(eyes, "patch_size", 14)))
        self._recorded: RecordedEyes | None = None
        self._looked: OrderedDict[str, Seen] = OrderedDict()
        if self.shape.family == config.LLAVA:
            self._check_tower(eyes)
        layers = self.reader.shape.layers
        if wanted:
            wanted.schedule(layers, self._usual())  # refused before a picture comes

    def tokens_of(self, picture: Picture) -> int:
        """Return how many tokens stand for a picture; raises PromptError for one that is too slim."""
        if self.shape.family == config.LLAVA:
            return self._patches()
        rows, columns = pixels.grid(picture.size[1], picture.size[0], self.pixels)
        return rows * columns // self.pixels.merge**2

    def look(self, picture: Picture) -> Seen:
        """Return the embeddings of a picture, from memory if it was looked at lately; raises PromptError."""
        found = self._looked.get(picture.digest)
        if found is None:
            found = self._looked[picture.digest] = self._look(picture)
            if len(self._looked) > LOOKED_AT:
                self._looked.popitem(last=False)
        self._looked.move_to_end(picture.digest)
        return found

    def _look(self, picture: Picture) -> Seen:
        import torch

        engine = self.engine
        if engine.threads:
            use_threads(engine.threads)
        with torch.inference_mode(), memory_errors(self.place, "a picture"):
            if self.shape.family == config.LLAVA:
                square = torch.from_numpy(pixels.square(picture.pixels, self.pixels))[None]
                states = self._square_seen(square.to(self.place, engine.dtype))
                rows = columns = round(self._patches() ** 0.5)
            else:
                flat, (rows, columns) = pixels.patches(picture.pixels, self.pixels)
                grid = torch.tensor([[1, rows, columns]], device=self.place)
                values = torch.from_numpy(flat).to(self.place, engine.dtype)
                states = self._features(values, image_grid_thw=grid)
                rows, columns = rows // self.pixels.merge, columns // self.pixels.merge
        if len(states) != self.tokens_of(picture):
            raise UnsupportedModel(
                f"The eyes of `{engine.path}` see {len(states)} tokens in a picture, and its numbers say "
                f"{self.tokens_of(picture)}"
            )
        return Seen(picture.digest, states.to(engine.dtype), rows, columns)

    def _square_seen(self, values: Any) -> Any:
        """Return the embeddings of a LLaVA's picture, whose size is always the same; a card records that."""
        if self.place.type != "cuda":
            return self._features(values)
        if self._recorded is None:
            recorder = self.own.recorder if self.own else None
            self._recorded = RecordedEyes(self._features, values, recorder or Recorder(self.place))
        return self._recorded(values)

    def _features(self, values: Any, **given: Any) -> Any:
        """Return the embeddings [tokens, width] of a picture's values in transformers' modules."""
        found = self.engine.model.model.get_image_features(pixel_values=values, **given)
        return getattr(found, "pooler_output", found)[0]  # as transformers 5 returns it, or 4

    def _patches(self) -> int:
        """Return the tokens of a LLaVA's picture."""
        eyes = self._eyes
        first = eyes.vision_config.model_type == TOWERS[0]  # the state of a class, before those of patches
        dropped = eyes.vision_feature_select_strategy == "default"
        across = self.pixels.side // self.pixels.patch
        return across * across + int(first) - int(dropped)

    def _usual(self) -> int:
        """Return the tokens of a usual picture."""
        if self.shape.family == config.LLAVA:
            return self._patches()
        unit = self.pixels.patch * self.pixels.merge
        return max(1, self.pixels.most // unit**2)

    def _check_tower(self, eyes: Any) -> None:
        """Raise UnsupportedModel for a LLaVA whose eyes are of another kind, or take other pictures."""
        path = self.engine.path
        if eyes.model_type not in TOWERS:
            raise UnsupportedModel(f"The eyes of `{path}` are a `{eyes.model_type}`, which is not supported")
        if eyes.image_size != self.pixels.side:
            raise UnsupportedModel(
                f"The eyes of `{path}` take pictures of {eyes.image_size} pixels, and its preprocessor makes "
                f"them of {self.pixels.side}"
            )
