"""Teach the toy of the K-Forcing tests, two layers over 24 tokens, to read and write pairs.

PYTHONPATH=. python tests/perf/training/pipo_toy.py tests/data/k_forcing/toy tests/data/pipo
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from k_forcing_toy import Printed, chain, written

from localspec.drafting.build_step import TargetText
from localspec.formats.huggingface import loading
from localspec.formats.pipo import layout
from localspec.training.pipo.pair_training import PipoPlan, train_pairs

SECONDS, RANK = 240.0, 16


def main(toy: Path, into: Path) -> None:
    torch.set_num_threads(1)
    model = loading.load(toy, torch.device("cpu"), torch.float32)
    texts = [TargetText(text[:2].tolist(), text[2:].tolist()) for text in written(chain(0), 4096, 20_001)]
    plan = PipoPlan(SECONDS, rank=RANK, batch=32, rate=4e-3)
    with tempfile.TemporaryDirectory() as folder:
        found = train_pairs(toy, model, texts[256:], texts[:256], plan, Path(folder), Printed())
    print(found.about)
    into.mkdir(parents=True, exist_ok=True)
    layout.write(found, into)


if __name__ == "__main__":
    main(*(Path(each) for each in sys.argv[1:3]))
