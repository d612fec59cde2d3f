"""Train the autoencoder of the tests: pictures of a few coloured shapes, 32 pixels a side, factor 4.

PYTHONPATH=. python tests/perf/training/vae_toy.py tests/data/vae
"""

from __future__ import annotations

import sys
from pathlib import Path
from time import monotonic

import torch
from diffusers import AutoencoderKL

SIDE, BATCH, SECONDS, RATE, SHAPES = 32, 16, 300.0, 1e-3, 3


def pictures(count: int, generator: torch.Generator) -> torch.Tensor:
    """Return pictures [count, 3, SIDE, SIDE] from -1 to 1 with discs and boxes."""
    places = torch.arange(SIDE)
    x = torch.rand(count, 3, 1, 1, generator=generator).expand(-1, -1, SIDE, SIDE).clone()
    for _ in range(SHAPES):
        middle = torch.rand(count, 2, generator=generator) * SIDE
        size = 3 + torch.rand(count, generator=generator) * 8
        away = (places - middle[:, :1])[:, :, None], (places - middle[:, 1:])[:, None, :]
        disc = away[0] ** 2 + away[1] ** 2 < size[:, None, None] ** 2
        box = (away[0].abs() < size[:, None, None]) & (away[1].abs() < size[:, None, None])
        inside = torch.where((torch.rand(count, generator=generator) < 0.5)[:, None, None], disc, box)
        colour = torch.rand(count, 3, 1, 1, generator=generator)
        x = torch.where(inside[:, None], colour, x)
    return x * 2 - 1


def main(into: Path) -> None:
    torch.manual_seed(0)
    model = AutoencoderKL(
        block_out_channels=(16, 32, 32),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=8,
        sample_size=SIDE,
        scaling_factor=0.5,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    generator, started, step = torch.Generator().manual_seed(1), monotonic(), 0
    while (share := (monotonic() - started) / SECONDS) < 1:
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, 2 * (1 - share))
        x = pictures(BATCH, generator)
        posterior = model.encode(x).latent_dist  # its mean: noise would only blur so small a model
        loss = (model.decode(posterior.mode()).sample - x).square().mean() + 1e-6 * posterior.kl().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
    x = pictures(64, torch.Generator().manual_seed(2))
    with torch.inference_mode():
        error = (model.decode(model.encode(x).latent_dist.mode()).sample - x).abs().mean().item()
    print(f"{step} steps; pixels of new pictures are {error / 2 * 255:.1f} of 255 off")
    model.half().save_pretrained(into)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
