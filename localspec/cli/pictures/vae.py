"""`localspec vae`: latents to pictures and back, on another machine or on this one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from localspec.cli import completion, console, options
from localspec.errors import BadValue, NetworkError, one_of

if TYPE_CHECKING:
    from localspec.vae.local import Autoencoder
    from localspec.vae.remote import Endpoint
    from localspec.vae.tensors import Tensor
    from localspec.vae.wire import Asked

HELP = """Decode latents to a picture, or encode a picture to latents, with an image model's autoencoder.

ACTION is `decode` or `encode`. FILE holds latents (.safetensors with a tensor `latents`, or .npy), or
a picture. --endpoint is a remote autoencoder: `localspec serve --vae FOLDER` on a machine with the memory, or
one that speaks as those of Hugging Face's hybrid inference do; what it sends is checked. --folder decodes
here, in tiles where memory is short; with both, this machine takes over when the endpoint fails. Needs the
extra `vae`, for --endpoint Pillow alone."""
EPILOG = """Examples:

  localspec vae decode latents.npy --endpoint "$URL/vae/decode" --model sdxl

  localspec vae decode latents.safetensors --folder sd-vae --out picture.jpg

  localspec vae encode picture.png --endpoint "$URL/vae/encode" --model sd"""
Found = TypeVar("Found")
ACTIONS = ("decode", "encode")
PICTURES = {".png": "png", ".jpg": "jpg", ".jpeg": "jpg"}
TENSORS = (".safetensors", ".npy")
MODELS = ("sd", "sdxl", "sd3", "flux")
PANELS = {
    "Autoencoder": ("endpoint", "folder", "device", "api_key", "timeout"),
    "Latents": ("model", "scaling_factor", "shift_factor", "size"),
}


@dataclass(frozen=True, slots=True)
class VaeOptions:
    """Arguments and options of `localspec vae`, in the order of its help."""

    action: Annotated[
        str,
        typer.Argument(
            help="decode or encode.",
            autocompletion=lambda incomplete: completion.starting(incomplete, lambda: ACTIONS),
            metavar="ACTION",
        ),
    ]
    file: Annotated[Path, typer.Argument(help="Latents, or a picture.", metavar="FILE")]
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write: .png, .jpg, .safetensors or .npy.",
            metavar="FILE",
            show_default="beside FILE",
        ),
    ] = None
    endpoint: Annotated[
        str | None, typer.Option(help="URL of a remote autoencoder.", metavar="URL", show_default="none")
    ] = None
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder of an AutoencoderKL on this machine.", metavar="FOLDER", show_default="none"
        ),
    ] = None
    device: Annotated[str, typer.Option(help="auto, cpu or cuda, for --folder.", metavar="DEVICE")] = "auto"
    api_key: Annotated[
        str | None, typer.Option(help="Key that the endpoint asks for.", metavar="KEY", show_default="none")
    ] = None
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds that an answer may take.", metavar="SECONDS")
    ] = 120
    model: Annotated[
        str | None,
        typer.Option(
            help="Pipeline that scaled the latents: sd, sdxl, sd3, flux.",
            autocompletion=lambda incomplete: completion.starting(incomplete, lambda: MODELS),
            metavar="NAME",
            show_default="none",
        ),
    ] = None
    scaling_factor: Annotated[
        float | None, typer.Option(help="Factor of the latents, instead of --model.", show_default="none")
    ] = None
    shift_factor: Annotated[
        float | None, typer.Option(help="Shift of the latents, beside the factor.", show_default="none")
    ] = None
    size: Annotated[
        str | None,
        typer.Option(help="WIDTHxHEIGHT in pixels, for packed latents.", metavar="SIZE", show_default="none"),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False

    def check(self) -> None:
        """Raise BadValue for what cannot be done, before anything is loaded."""
        if self.action not in ACTIONS:
            raise BadValue(f"`{self.action}` is no action", "Choose `decode` or `encode`")
        if not self.endpoint and not self.folder:
            raise BadValue(
                "Neither an endpoint nor a folder is given",
                "Add `--endpoint URL`, `--folder FOLDER`, or both",
            )
        one_of(model=self.model, scaling_factor=self.scaling_factor)
        if self.model and self.model not in MODELS:
            raise BadValue(f"`--model` is `{self.model}`", f"Choose from {', '.join(MODELS)}")
        if self.shift_factor is not None and self.scaling_factor is None:
            raise BadValue("`--shift-factor` needs `--scaling-factor`", "Give both, or `--model`")
        known = (*PICTURES, *TENSORS) if self.action == "decode" else TENSORS
        if self.target.suffix.lower() not in known:
            raise BadValue(f"`{self.target}` has an unknown ending", f"Choose from {', '.join(known)}")

    @property
    def target(self) -> Path:
        """The file to write."""
        return self.out or self.file.with_suffix(".png" if self.action == "decode" else ".safetensors")

    @property
    def asked(self) -> Asked:
        """The request to the autoencoder; raises BadValue."""
        from localspec.vae.wire import SCALINGS, Asked, Scaling

        scaling = SCALINGS[self.model] if self.model else Scaling(self.scaling_factor, self.shift_factor)
        form = PICTURES.get(self.target.suffix.lower())
        return Asked(scaling, "pil" if form else "pt", form or "png", size=_size(self.size))


@options.panels(PANELS)
@options.command
def vae(given: VaeOptions) -> None:
    """Check the options, ask the endpoint or this machine, and write the files."""
    given.check()
    work = _decoded if given.action == "decode" else _encoded
    written = work(given, given.asked, _Coder(given))
    if given.as_json:
        console.print_json({"files": [str(path) for path in written]})
    else:
        console.say(f"Wrote {', '.join(map(str, written))}")


class _Coder:
    """The endpoint if one is given, and the autoencoder of this machine, loaded once it is needed."""

    def __init__(self, given: VaeOptions) -> None:
        from localspec.vae.remote import Endpoint

        self._given = given
        self._here: Autoencoder | None = None
        self._endpoint = (
            Endpoint(given.endpoint, given.api_key, given.timeout, console.say) if given.endpoint else None
        )

    def run(self, remote: Callable[[Endpoint], Found], here: Callable[[Autoencoder], Found]) -> Found:
        """Return what the endpoint finds, or this machine where there is none or it fails."""
        if self._endpoint:
            try:
                return remote(self._endpoint)
            except NetworkError as error:
                if not self._given.folder:
                    raise
                console.say(f"{error.message}; this machine takes over")
                self._endpoint = None
        if self._here is None:
            from localspec.vae.local import Autoencoder

            assert self._given.folder
            self._here = Autoencoder(self._given.folder, self._given.device)
        return here(self._here)


def _decoded(given: VaeOptions, asked: Asked, coder: _Coder) -> list[Path]:
    """Write the pictures of latents, or their tensor; return the files."""
    from localspec.disk import atomic
    from localspec.vae import tensors

    latents, written = tensors.read(given.file), []
    if asked.output == "pt":
        found = coder.run(lambda far: far.pixels(latents, asked), lambda near: near.tensor(latents, asked))
        tensors.write(given.target, found)
        return [given.target]
    parts = latents.parts()
    for at, part in enumerate(parts):
        path = given.target
        if len(parts) > 1:
            path = path.with_stem(f"{path.stem}-{at + 1}")
        atomic.write(path, _picture(part, asked, coder))
        written.append(path)
    return written


def _picture(latents: Tensor, asked: Asked, coder: _Coder) -> bytes:
    return coder.run(lambda far: far.picture(latents, asked), lambda near: near.decode(latents, asked)[0])


def _encoded(given: VaeOptions, asked: Asked, coder: _Coder) -> list[Path]:
    """Write the latents of a picture; return the file."""
    from localspec import pictures
    from localspec.vae import images, tensors

    pixels = pictures.of_bytes(pictures.read_bytes(given.file), str(given.file)).pixels
    found = coder.run(
        lambda far: far.latents(images.encoded(pixels, "png"), asked), lambda near: near.encode(pixels, asked)
    )
    tensors.write(given.target, found)
    return [given.target]


def _size(text: str | None) -> tuple[int, int] | None:
    """Return height and width of `WIDTHxHEIGHT`; raises BadValue."""
    if text is None:
        return None
    wide, cross, high = text.lower().partition("x")
    if not (cross and wide.isdigit() and high.isdigit()):
        raise BadValue(f"`--size` is `{text}`", "Such as `--size 1024x768`")
    return int(high), int(wide)
