"""Load a speech model by name, with the drafts that may serve it."""

from __future__ import annotations

import math
from pathlib import Path
from time import perf_counter

from localspec import plugins
from localspec.errors import UnsupportedModel
from localspec.library import Library, Progress, StoredModel, catalogue
from localspec.runtime.choice import OFF, with_options
from localspec.runtime.loading import LoadSpec, check_memory
from localspec.speech.transcriber import Transcriber
from localspec.speech.whisper.copies import COPIES
from localspec.speech.whisper.drafting import Drafting, DraftSource
from localspec.speech.whisper.model import ENCODER_WEIGHTS, SpeechModel
from localspec.speech.whisper.vocabulary import SpeechTokens

AUTO, SELF, ENGINE = "auto", "self", "openvino"
# Looking for a copy takes 60 microseconds between two passes: 2 % of such a pass, which a draft may lose.
COPIES_FROM = {COPIES: 0.0, AUTO: 0.003}  # seconds of a pass from which there are copies, by `--draft`
DECODER = "openvino_model.bin"


def load(
    name: str, draft: str, library: Library, progress: Progress, threads: int | None = None
) -> Transcriber:
    """Return a transcriber with the speech model called `name`, downloading it if it is missing.

    `draft` is a model's name, `off`, `copies` of what was said earlier in the file, `self` for a draft by the
    model itself, or `auto`: both, and the catalogue's drafts for the model that are installed. A draft is
    loaded once it pays. Raises what `Library.resolve` raises, TooLittleMemory, and UnsupportedModel for a
    draft that is as large as the model.
    """
    model = library.resolve(name, progress, ("openvino",), kind=catalogue.SPEECH)
    drafts = _drafts(model, draft, library, progress)
    spec = with_options(plugins.parse("engines", ENGINE), threads=threads)
    loads = [LoadSpec(spec, each) for each in (model, *drafts)]
    check_memory(loads)
    started = perf_counter()
    with progress.step(f"Loading {model.name}"):
        target = _open(loads[0])
    seconds = perf_counter() - started
    sources = [_source(each, loads[0]) for each in loads[1:]]
    if draft in (AUTO, SELF):
        sources.append(DraftSource(SELF, target.tokens, 0.0, 0.0, lambda: target))
    return Transcriber(Drafting(target, sources, seconds, COPIES_FROM.get(draft, math.inf)))


def _drafts(model: StoredModel, draft: str, library: Library, progress: Progress) -> list[StoredModel]:
    """Return the drafts for a model, best first."""
    if draft in (OFF, COPIES, SELF):
        return []
    if draft != AUTO:
        named = library.resolve(draft, progress, ("openvino",), kind=catalogue.SPEECH)
        if _bytes(named.folder, DECODER) >= _bytes(model.folder, DECODER):
            raise UnsupportedModel(
                f"`{named.name}` cannot draft for `{model.name}`: its decoder is no smaller",
                "Choose a smaller model, or leave `--draft` out",
            )
        return [named]
    entry = catalogue.lookup(model.name)
    names = [entry.draft_en, entry.draft] if entry else []
    return [found for name in names if name and (found := library.find(name))]


def _source(load: LoadSpec, target: LoadSpec) -> DraftSource:
    """Return a draft that is loaded later."""
    encoder, decoder = (
        _bytes(load.path, file) / max(_bytes(target.path, file), 1) for file in (ENCODER_WEIGHTS, DECODER)
    )
    return DraftSource(load.model.name, SpeechTokens.of(load.path), encoder, decoder, lambda: _open(load))


def _open(load: LoadSpec) -> SpeechModel:
    return SpeechModel(load.load(), load.path, load.model.tokenizer())


def _bytes(folder: Path, file: str) -> int:
    path = folder / file
    return path.stat().st_size if path.is_file() else 0
