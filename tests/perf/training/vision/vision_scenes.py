"""Train small LLaVAs on synthetic scenes and measure what pruning and rerouting of visual tokens cost them.

    PYTHONPATH=. python tests/perf/training/vision/vision_scenes.py --work DIR --minutes 8
    PYTHONPATH=. python tests/perf/training/vision/vision_scenes.py --work DIR --size small --steps 1180

The first is for a card: pictures of 576 patches, 12 layers. The second, with `--minutes 60`, is for a
processor: 64 patches, 4 layers. Each seed trains on the full picture alone. Its answers are then counted with
all visual tokens, and with fewer on average by each method. DIR keeps each seed and its model, and an
interrupted run goes on; DIR/report.json has everything, and DIR/model-0 is the first seed's model.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

ROOT = Path(__file__).parents[4]
sys.path[:0] = [
    str(ROOT),
    *(str(ROOT / "tests" / part) for part in ("vision", "support", "perf/training/vision", "perf/cuda")),
]

import first_token  # noqa: E402
import scenes  # noqa: E402
from answered import answered  # noqa: E402
from scenes import TASKS  # noqa: E402
from small_llava import SmallLlava  # noqa: E402
from small_llava_files import SIZES  # noqa: E402

from localspec.engines.torch.vision.reader import Reader  # noqa: E402
from localspec.pictures.schedule import Decision, Schedule, by_mean  # noqa: E402

BATCH = 32  # test scenes at once
LAST_RATE = 0.02  # share of the rate at the end
SAVED_EVERY = 40.0  # seconds between two checkpoints


class Plan(NamedTuple):
    """How a size is trained and tested.

    `rate` is the learning rate after so many `warm_up` steps, `batch` the pictures of a step with `questions`
    about each, `look` the steps between two looks at the clock. `kept` are the shares of visual tokens in a
    layer: the first one reads them all, in 4 layers a quarter.
    """

    rate: float
    warm_up: int
    batch: int
    questions: int
    look: int
    kept: dict[str, float]


PLANS = {
    "large": Plan(1.5e-3, 150, 64, 24, 20, {"50 %": 0.5, "75 %": 0.25, "88.9 %": 1 / 9}),
    "small": Plan(1.5e-3, 100, 32, 12, 5, {"50 %": 0.5, "60 %": 0.4, "70 %": 0.3}),
}


def learning_rate(plan: Plan, step: int, done: float) -> float:
    """Return the rate at a step, `done` of all steps or time being over: a warm-up, then half a cosine."""
    falling = LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + np.cos(np.pi * min(done, 1.0)))
    return float(plan.rate * min(1.0, (step + 1) / plan.warm_up) * falling)


def objects_at(done: float) -> int:
    """Return how many objects the scenes have: one at first, from the middle on as many as in tests."""
    return min(scenes.OBJECTS, 1 + int(2 * (scenes.OBJECTS - 1) * done))


class Training:
    """One seed's training, which ends when its seconds are over."""

    def __init__(self, seed: int, options: argparse.Namespace, model: SmallLlava, loss: Any) -> None:
        self.options, self.place, self.model, self.loss = options, model.place, model, loss
        self.plan = PLANS[options.size]
        place = model.place
        model.begin(seed)
        self.numbers = torch.Generator(place).manual_seed(1000 + seed)
        fused = place.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            [self.model.flat], self.plan.rate, (0.9, 0.98), weight_decay=0.01, fused=fused
        )
        self.dtype = torch.bfloat16 if fused else torch.float32
        self.file = options.work / f"seed-{seed}.pt"
        self.step, self.spent = 0, 0.0

    def run(self, seconds: float) -> None:
        """Train until the seconds are over, from a checkpoint if one is there."""
        self._resume()
        started, saved = time.perf_counter() - self.spent, -SAVED_EVERY
        running: Any = torch.zeros((), device=self.place)
        while self.spent < seconds and self.step < self.options.steps:
            done = max(self.spent / seconds, self.step / self.options.steps)
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(self.plan, self.step, done)
            running = 0.95 * running + 0.05 * self._update(objects_at(done))
            self.step += 1
            if self.step % self.plan.look == 0 or self.step == self.options.steps:
                self._wait()
                self.spent = time.perf_counter() - started
                if self.step % (20 * self.plan.look) == 0:
                    print(f"step {self.step}, {self.spent:.0f} s, loss {running.item():.3f}", file=sys.stderr)
                if self.spent - saved > SAVED_EVERY:
                    self._save()
                    saved = self.spent
        self._save()

    def _update(self, objects: int) -> Any:
        drawn = scenes.scenes(self.plan.batch, self.numbers, self.model.size.grid, objects)
        asked = scenes.ask(drawn, self.plan.questions, self.numbers)
        loss = self.loss(self.model.flat, drawn.pictures, asked.questions, asked.answers, self.dtype)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([self.model.flat], 1.0)
        self.optimizer.step()
        return loss.detach()

    def _wait(self) -> None:
        if self.place.type == "cuda":
            torch.cuda.synchronize(self.place)

    def _save(self) -> None:
        state = {
            "flat": self.model.flat.detach(),
            "optimizer": self.optimizer.state_dict(),
            "numbers": self.numbers.get_state(),
            "step": self.step,
            "spent": self.spent,
        }
        new = self.file.with_suffix(".new")
        torch.save(state, new)
        new.replace(self.file)

    def _resume(self) -> None:
        if not self.file.exists():
            return
        state = torch.load(self.file, map_location=self.place, weights_only=True)
        with torch.no_grad():
            self.model.flat.copy_(state["flat"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.numbers.set_state(state["numbers"].cpu())
        self.step, self.spent = state["step"], state["spent"]


def loss_of(model: SmallLlava, options: argparse.Namespace) -> Any:
    """Return the model's loss, compiled on a card if that works there: it has few operations otherwise."""
    dtype = torch.bfloat16 if model.place.type == "cuda" else torch.float32
    if options.eager or model.place.type != "cuda":
        return model.loss
    numbers, plan = torch.Generator(model.place).manual_seed(0), PLANS[options.size]
    drawn = scenes.scenes(plan.batch, numbers, model.size.grid)
    asked = scenes.ask(drawn, plan.questions, numbers)
    started = time.perf_counter()
    try:
        compiled = torch.compile(model.loss, dynamic=False)
        for _ in range(2):
            compiled(model.flat, drawn.pictures, asked.questions, asked.answers, dtype).backward()
        torch.cuda.synchronize()
    except Exception as error:  # of the compiler, which raises many kinds
        print(f"not compiled: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr, flush=True)
        return model.loss
    print(f"compiled in {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return compiled


def schedules(layers: int, tokens: int, share: float) -> dict[str, Schedule]:
    """Return the schedules by method that keep a share of the visual tokens on average.

    `reroute` has PDrop's schedule, and `reroute, even` keeps FastV's number at each of its decisions.
    """
    found = {
        method: by_mean(share * tokens, method, layers, tokens) for method in ("fastv", "pdrop", "reroute")
    }
    keep = found["fastv"].decisions[0].keep
    even = (Decision(decision.layer, keep) for decision in found["reroute"].decisions)
    return found | {"reroute, even": Schedule(tuple(even))}


def batches(model: SmallLlava, options: argparse.Namespace) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Yield what the model sees of test scenes, and one question of each task about them."""
    numbers, weights = torch.Generator(model.place).manual_seed(7), model.tensors()
    for _ in range(options.scenes // BATCH):
        drawn = scenes.scenes(BATCH, numbers, model.size.grid)
        asked = scenes.ask(drawn, len(TASKS), numbers)
        seen = model.see(weights, drawn.pictures).repeat_interleave(len(TASKS), 0)
        yield seen, asked.questions.flatten(0, 1), asked.answers.flatten(0, 1), asked.tasks.flatten()


def accuracy(model: SmallLlava, options: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """Return the accuracy by tokens fewer, method and task, in per cent."""
    reader, layers = Reader(model.decoder()), model.size.layers
    plans = {"none": {"full": Schedule()}}
    kept, patches = PLANS[options.size].kept, model.size.grid.patches
    plans |= {fewer: schedules(layers, patches, share) for fewer, share in kept.items()}
    right = {
        (fewer, method): torch.zeros(len(TASKS), device=model.place)
        for fewer in plans
        for method in plans[fewer]
    }
    asked = 0
    with torch.inference_mode():
        for seen, questions, answers, tasks in batches(model, options):
            asked += len(tasks) // len(TASKS)
            for fewer, method in right:
                found = answered(reader, seen, questions, plans[fewer][method])
                done = scenes.correct(found, answers, tasks)
                right[fewer, method] += torch.stack([done[tasks == task].sum() for task in range(len(TASKS))])
    found = {}
    for (fewer, method), counts in right.items():
        shares = (100 * counts.double() / asked).tolist()
        found.setdefault(fewer, {})[method] = dict(zip(TASKS, shares, strict=True))
    return found


def report(results: dict[str, Any], timing: Any, device: str) -> dict[str, Any]:
    """Return means over seeds, sample standard deviations, each seed's numbers, and what rerouting gains."""

    def spread(values: list[float]) -> dict[str, Any]:
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        return {"mean": round(float(np.mean(values)), 2), "spread": round(deviation, 2),
                "seeds": [round(value, 2) for value in values]}  # fmt: skip

    found = [result["accuracy"] for result in results.values()]
    table = {
        fewer: {
            method: {task: spread([one[fewer][method][task] for one in found]) for task in TASKS}
            for method in found[0][fewer]
        }
        for fewer in found[0]
    }
    pairs = {"pdrop": "reroute", "fastv": "reroute, even"}
    gains = {
        fewer: {
            f"{better} - {pruner}": {
                task: spread([one[fewer][better][task] - one[fewer][pruner][task] for one in found])
                for task in TASKS
            }
            for pruner, better in pairs.items()
        }
        for fewer in table
        if fewer != "none"
    }
    steps = {seed: result["steps"] for seed, result in results.items()}
    return {"device": device, "steps": steps, "accuracy": table, "gain": gains, "first_token": timing}


def trained(
    seed: int, seconds: float, options: argparse.Namespace, model: SmallLlava, loss: Any
) -> dict[str, Any]:
    """Return the result of a seed, from its file if that is there."""
    file = options.work / f"seed-{seed}.json"
    if not file.exists():
        training = Training(seed, options, model, loss)
        training.run(seconds)
        training.model.save(options.work / f"model-{seed}")
        result = {"steps": training.step, "accuracy": accuracy(training.model, options)}
        file.write_text(json.dumps(result), encoding="utf-8")
    return dict(json.loads(file.read_text(encoding="utf-8")))


def timed(options: argparse.Namespace, place: torch.device) -> dict[str, Any]:
    """Return the times of the first token, or why there are none: the training does not depend on them."""
    try:
        found = first_token.measured(first_token.SIZES[options.timed], place)
    except (RuntimeError, ImportError, TypeError) as error:  # too little memory, or another transformers
        found = {"error": str(error)}
    if place.type == "cuda":
        torch.cuda.empty_cache()
    print(json.dumps({"first_token": found}), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=8.0, help="of training, of all seeds together")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--size", choices=SIZES, default="large")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--scenes", type=int, default=1024, help="test scenes, each asked once of each task")
    parser.add_argument("--steps", type=int, default=1_000_000, help="of a seed at most")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--eager", action="store_true", help="compile nothing")
    parser.add_argument("--timed", choices=first_token.SIZES, help="time the first token in this shape, too")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    place = torch.device(options.device)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    device = torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu"
    timing = [timed(options, place)] if options.timed else []
    results, model = {}, SmallLlava(SIZES[options.size], place)
    loss = loss_of(model, options)
    seconds = 60 * options.minutes / len(options.seeds)
    for seed in options.seeds:
        results[str(seed)] = trained(seed, seconds, options, model, loss)
        found = report(results, timing, device)
        (options.work / "report.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
        print(f"seed {seed}: {json.dumps(results[str(seed)])}", file=sys.stderr, flush=True)
    timing += [timed(options, place)] if options.timed else []  # other work on the card may have ended
    print(json.dumps(report(results, timing, device)), flush=True)


if __name__ == "__main__":
    main()
