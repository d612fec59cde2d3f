"""The counts of a server, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
from prometheus_client import CollectorRegistry, Counter, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from localspec.serve.generation import End
from localspec.serve.pool import Pool

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COUNTED = {
    "prompt_tokens": "Tokens of prompts",
    "cached_prompt_tokens": "Tokens of prompts that were in the KV cache",
    "answer_tokens": "Tokens of answers",
    "drafted_tokens": "Guesses",
    "accepted_tokens": "Guesses that the model accepted",
    "passes": "Passes of the model",
}

disable_created_metrics()  # type: ignore[no-untyped-call]  # a time beside each count, which nobody asks for


class Counts:
    """The counts of one server, and the state of its pool when they are read."""

    def __init__(self, pool: Pool) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "localspec_requests", "Requests", ("path", "status"), registry=self._registry
        )
        self._counters = {
            name: Counter(f"localspec_{name}", meaning, ("model",), registry=self._registry)
            for name, meaning in COUNTED.items()
        }
        self._now = _Now(pool)
        self._registry.register(self._now)

    def request(self, path: str, status: int) -> None:
        """Count a request."""
        self._requests.labels(path, str(status)).inc()

    def answer(self, model: str, end: End) -> None:
        """Count an answer."""
        stats = end.answer.stats
        counts = (
            *(end.answer.prompt_tokens, end.cached, len(end.answer.token_ids)),
            *(stats.drafted, stats.accepted, stats.passes),
        )
        for counter, count in zip(self._counters.values(), counts, strict=True):
            counter.labels(model).inc(count)
        drafted, passes = self._now.drafts.get(model, (0, 0))
        self._now.drafts[model] = (drafted + stats.drafted, passes + stats.passes)

    def page(self) -> bytes:
        """Return the counts in Prometheus' text format."""
        return generate_latest(self._registry)


class _Now(Collector):
    """The gauges, measured when somebody asks."""

    def __init__(self, pool: Pool) -> None:
        self._pool, self._process = pool, psutil.Process()
        self.drafts: dict[str, tuple[int, int]] = {}  # guesses and passes of each model

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges."""
        lengths = GaugeMetricFamily("localspec_draft_length", "Average guesses per pass", labels=["model"])
        for model, (drafted, passes) in self.drafts.items():
            lengths.add_metric([model], drafted / passes if passes else 0.0)
        waiting = GaugeMetricFamily("localspec_queue_length", "Requests that a model has", labels=["model"])
        for served in self._pool.loaded:
            waiting.add_metric([served.name], served.waiting)
        loaded = GaugeMetricFamily("localspec_loaded_models", "Loaded models", len(self._pool.loaded))
        memory = self._process.memory_info().rss
        resident = GaugeMetricFamily("process_resident_memory_bytes", "Resident memory in bytes", memory)
        yield from (lengths, waiting, loaded, resident)
