"""An autoencoder behind loopback: the same pictures as here, through our client and that of diffusers."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Localspec
from PIL import Image
from serving import Server

from localspec.errors import BadValue, LocalspecError, NetworkError
from localspec.vae import images, tensors
from localspec.vae.local import Autoencoder
from localspec.vae.remote import Endpoint
from localspec.vae.tensors import Tensor
from localspec.vae.wire import Asked, Scaling

TOY = Path(__file__).parents[2] / "data" / "vae" / "toy"
SCALED = Asked(Scaling(0.5))


@pytest.fixture(scope="module")
def here() -> Autoencoder:
    return Autoencoder(TOY, "cpu")


@pytest.fixture(scope="module")
def picture() -> Any:
    high, wide = np.mgrid[:48, :64]
    red = ((high - 20) ** 2 + (wide - 30) ** 2 < 150) * 200
    return np.stack([red, wide * 3, np.full_like(red, 60)], -1).astype(np.uint8)


@pytest.fixture(scope="module")
def latents(here: Autoencoder, picture: Any) -> Tensor:
    return here.encode(picture, SCALED)


Answer = Callable[[BaseHTTPRequestHandler, bytes], None]


@pytest.fixture
def lying() -> Iterator[Callable[[Answer], str]]:
    """Start an endpoint that answers as it is told; return its URL."""
    servers = []

    def start(answer: Answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                try:
                    answer(self, body)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def sent(handler: BaseHTTPRequestHandler, content: bytes, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    for name, value in {"content-length": str(len(content)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(content)


def endpoint(url: str, said: list[str] | None = None, **options: Any) -> Endpoint:
    lines = [] if said is None else said
    return Endpoint(url, say=lines.append, pause=lambda seconds: None, **options)


def test_the_toy_gives_back_what_it_was_given(here: Autoencoder, picture: Any, latents: Tensor) -> None:
    assert latents.shape == (1, 4, 12, 16)
    content, _ = here.decode(latents, SCALED)
    found = np.asarray(Image.open(io.BytesIO(content)))
    assert found.shape == picture.shape
    assert np.abs(found.astype(int) - picture).mean() < 16


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `localspec serve --vae`, in a process of its own."""
    running = Server(Localspec(tmp_path_factory.mktemp("vae")), "--vae", str(TOY))
    yield running.url
    assert running.stop() == 143


def test_served_pictures_are_those_of_this_machine(
    served: str, here: Autoencoder, picture: Any, latents: Tensor
) -> None:
    far = endpoint(f"{served}/vae/decode")
    assert far.picture(latents, SCALED) == here.decode(latents, SCALED)[0]
    for asked in (Asked(Scaling(0.5), "pt"), Asked(Scaling(0.5), "pt", processed=True)):
        near = here.tensor(latents, asked)
        found = far.pixels(latents, asked)
        assert found.shape == near.shape
        assert np.abs(found.numpy().astype(float) - near.numpy()).max() <= 1 / 255
    found = endpoint(f"{served}/vae/encode").latents(images.encoded(picture, "png"), SCALED)
    assert np.array_equal(found.numpy(), latents.numpy())


def test_the_client_of_diffusers_gets_the_same(served: str, here: Autoencoder, latents: Tensor) -> None:
    import torch
    from diffusers.utils.remote_utils import remote_decode, remote_encode

    tensor = torch.from_numpy(latents.numpy().copy())
    expected = np.asarray(Image.open(io.BytesIO(here.decode(latents, SCALED)[0])))
    found = remote_decode(f"{served}/vae/decode", tensor, scaling_factor=0.5, image_format="png")
    assert np.array_equal(np.asarray(found), expected)
    found = remote_decode(
        f"{served}/vae/decode", tensor, scaling_factor=0.5, output_type="pt", partial_postprocess=True
    )
    assert np.array_equal(np.asarray(found), expected)
    back = remote_encode(f"{served}/vae/encode", Image.fromarray(expected), scaling_factor=0.5)
    assert np.array_equal(back.numpy(), here.encode(expected, SCALED).numpy())


def test_latents_of_another_model_are_refused_in_words(served: str) -> None:
    wrong = Tensor.of(np.zeros((1, 16, 8, 8), np.float16))
    with pytest.raises(LocalspecError, match="16 channels, and those of this autoencoder 4"):
        endpoint(f"{served}/vae/decode").picture(wrong, SCALED)
    bad = Tensor.of(np.full((1, 4, 8, 8), np.nan, np.float16))
    with pytest.raises(LocalspecError, match="not finite"):
        endpoint(f"{served}/vae/decode").picture(bad, SCALED)
    with pytest.raises(LocalspecError, match="damaged|no picture"):
        endpoint(f"{served}/vae/encode").latents(b"no picture", SCALED)


def test_packed_latents_need_their_size(here: Autoencoder, latents: Tensor) -> None:
    values = latents.numpy().reshape(1, 4, 6, 2, 8, 2).transpose(0, 2, 4, 1, 3, 5).reshape(1, 48, 16)
    packed = Tensor.of(values)
    asked = Asked(Scaling(0.5), size=(48, 64))
    assert here.decode(packed, asked)[0] == here.decode(latents, SCALED)[0]
    with pytest.raises(BadValue, match="do not tell their size"):
        here.decode(packed, SCALED)
    with pytest.raises(BadValue, match=r"are \[64, 16\] for this model"):
        here.decode(packed, Asked(Scaling(0.5), size=(64, 64)))


def test_what_a_busy_endpoint_says_is_tried_again(
    lying: Callable[[Answer], str], here: Autoencoder, latents: Tensor
) -> None:
    turns = iter([503, 429, 200])

    def answer(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        status = next(turns)
        content = here.decode(latents, SCALED)[0] if status == 200 else b"busy"
        sent(handler, content, status, retry_after="7")

    said: list[str] = []
    assert endpoint(lying(answer), said).picture(latents, SCALED) == here.decode(latents, SCALED)[0]
    assert [line.partition("/` ")[2] for line in said] == [
        "answers 503; trying again in 7 s",
        "answers 429; trying again in 7 s",
    ]


def png(high: int, wide: int) -> bytes:
    return images.encoded(np.zeros((high, wide, 3), np.uint8), "png")


@pytest.mark.parametrize(
    ("content", "headers", "said"),
    [
        (png(40, 64), {}, "64 x 40 pixels for latents of 16 x 12"),
        (png(48, 64)[:-40], {}, "sent no PNG"),
        (b"<html>", {}, "sent no PNG"),
        (b"", {}, "sent no PNG"),
        (b"x" * 2_000_000, {}, "more than the"),
    ],
)
def test_pictures_of_a_lying_endpoint_are_refused(
    content: bytes, headers: dict[str, str], said: str, lying: Callable[[Answer], str], latents: Tensor
) -> None:
    url = lying(lambda handler, body: sent(handler, content, **headers))
    with pytest.raises(NetworkError, match=said):
        endpoint(url).picture(latents, SCALED)


@pytest.mark.parametrize(
    ("shape", "dtype", "size"),
    [
        ("[1, 3, 48, 64]", "float16", 100),
        ("[1, 3, 480, 640]", "float16", 3 * 48 * 64 * 2),
        ("[1, 4, 48, 64]", "float16", 4 * 48 * 64 * 2),
        ("[9, 3, 48, 64]", "uint8", 9 * 3 * 48 * 64),
        ("[[1]]", "float16", 2),
        ("no JSON", "float16", 2),
        ("[1, 3, 48, 64]", "object", 3 * 48 * 64),
        ("[-1, 3, 48, 64]", "float16", 2),
    ],
)
def test_tensors_of_a_lying_endpoint_are_refused(
    shape: str, dtype: str, size: int, lying: Callable[[Answer], str], latents: Tensor
) -> None:
    url = lying(lambda handler, body: sent(handler, b"0" * size, shape=shape, dtype=dtype))
    with pytest.raises(NetworkError, match="The endpoint sent"):
        endpoint(url).pixels(latents, Asked(Scaling(0.5), "pt"))


def test_an_answer_that_never_ends_is_left(lying: Callable[[Answer], str], latents: Tensor) -> None:
    def answer(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b"x")
            time.sleep(0.05)

    with pytest.raises(NetworkError, match="still sends after 1 s"):
        endpoint(lying(answer), seconds=1.0).picture(latents, SCALED)


def test_an_answer_that_breaks_off_is_tried_again_and_refused(
    lying: Callable[[Answer], str], latents: Tensor
) -> None:
    said: list[str] = []

    def answer(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        handler.send_response(200)
        handler.send_header("content-length", "1000")
        handler.end_headers()
        handler.wfile.write(b"half")
        handler.close_connection = True

    with pytest.raises(NetworkError, match="does not answer"):
        endpoint(lying(answer), said).picture(latents, SCALED)
    assert len(said) == 3


def test_a_redirect_is_not_followed(lying: Callable[[Answer], str], latents: Tensor) -> None:
    url = lying(lambda handler, body: sent(handler, b"", 307, location="http://127.0.0.1:9/"))
    with pytest.raises(LocalspecError, match=r"refuses \(307\)"):
        endpoint(url).picture(latents, SCALED)


@pytest.mark.parametrize("url", ["ftp://a/b", "nonsense", "http://", "http://user:pw@host/"])
def test_addresses_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(BadValue, match="no address of an endpoint"):
        Endpoint(url)


def test_the_command_decodes_remotely_here_and_with_a_fallback(
    served: str, latents: Tensor, here: Autoencoder, tmp_path: Path
) -> None:
    localspec = Localspec(tmp_path / "home")
    tensors.write(tmp_path / "two.safetensors", Tensor.of(np.concatenate([latents.numpy()] * 2)))
    expected = here.decode(latents, SCALED)[0]
    ways = {
        "far": ["--endpoint", f"{served}/vae/decode"],
        "near": ["--folder", str(TOY), "--device", "cpu"],
        "either": ["--endpoint", "http://127.0.0.1:9/", "--folder", str(TOY), "--timeout", "1"],
    }
    for name, options in ways.items():
        target = tmp_path / f"{name}.png"
        arguments = ("vae", "decode", str(tmp_path / "two.safetensors"), "--out", str(target))
        done = localspec.run(*arguments, "--scaling-factor", "0.5", "--json", *options)
        files = done.values["files"]
        assert files == [str(tmp_path / f"{name}-{at}.png") for at in (1, 2)]
        assert all(Path(file).read_bytes() == expected for file in files)
        assert ("this machine takes over" in done.err) == (name == "either")


def test_an_endpoint_that_stays_busy_counts_as_failed(
    lying: Callable[[Answer], str], latents: Tensor
) -> None:
    url = lying(lambda handler, body: sent(handler, b"busy", 503))
    with pytest.raises(NetworkError, match=r"refuses \(503\)"):
        endpoint(url).picture(latents, SCALED)
