"""The server's Prometheus metrics, and the drift of fetching from the checkpoint's reference."""

from collections import Counter as Counted
from collections import deque
from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, generate_latest

from ..evaluation.fetch_reference import Distribution, FetchReference, fetch_statistics
from ..modeling.budgets import TIERS, scaled_budget
from ..modeling.prompt import EmbeddedPrompt

SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
"""Upper limits of prompt lengths, tokens, images included; latencies are grouped by them."""

COUNTS = (0, 16, 32, 64, 128, 180, 256, 273, 400, 1024, 4096)
"""Upper limits of the numbers of patches fetched for one image."""


def length_label(tokens: int) -> str:
    """The smallest of `LENGTHS` that holds a prompt of `tokens`, or "more"."""
    return next((str(length) for length in LENGTHS if tokens <= length), "more")


def tier_label(fetched: int, patches: int) -> str:
    """The smallest tier with at least `fetched` of an image's `patches`, "none" or "more"."""
    if not fetched:
        return "none"
    return next((str(tier) for tier in TIERS if fetched <= scaled_budget(tier, patches)), "more")


class Metrics:
    """Counters and histograms of one server, in a separate registry."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        seconds = partial(Histogram, buckets=SECONDS, registry=registry)
        told = "From a whole request to its first token, by prompt tokens."
        self.first_token = seconds("arr_coc_first_token_seconds", told, ["tokens"])
        told = "From a whole request to its last token, by prompt tokens."
        self.answer = seconds("arr_coc_answer_seconds", told, ["tokens"])
        self.encode_seconds = seconds("arr_coc_encode_seconds", "Encoding one image.")
        told = "Patches fetched for an image, by strategy."
        self.patches = Histogram("arr_coc_fetched_patches", told, ["strategy"], buckets=COUNTS, registry=registry)
        told = "What scorer and bridge did, by statistic and strategy."
        self.statistics = Summary("arr_coc_fetch_statistic", told, ["statistic", "strategy"], registry=registry)
        gauge = partial(Gauge, labelnames=["statistic"], registry=registry)
        self.reference = gauge("arr_coc_fetch_reference", "The checkpoint's own mean of a statistic.")
        told = "Population stability index of a statistic against the checkpoint's reference."
        self.drift = gauge("arr_coc_drift", told)
        count = partial(Counter, registry=registry)
        told = "Fetched tokens, by the smallest tier that holds them."
        self.fetched_tokens = count("arr_coc_fetched_tokens", told, ["tier"])
        told = "What was done in a simpler or slower way, by why."
        self.fallbacks = count("arr_coc_fallbacks", told, ["reason"])
        self.prompt_tokens = count("arr_coc_prompt_tokens", "Tokens of prompts, images included.")
        self.answer_tokens = count("arr_coc_answer_tokens", "Tokens of answers.")
        self.answers = count("arr_coc_answers", "Questions by how they ended.", ["finish"])
        self.refused = count("arr_coc_refused", "Requests that were refused, by reason.", ["reason"])
        self.encodings = count("arr_coc_encodings", "Images asked for, by where from.", ["source"])
        self.worker_restarts = count("arr_coc_image_worker_restarts", "Image workers that ended or hung.")

    def watch(self, name: str, description: str, value: Callable[[], float]) -> None:
        """Adds a gauge whose value is computed on each read."""
        Gauge(name, description, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self.registry)


WINDOW = 1000  # the number of latest values of a statistic from which drift is computed
ENOUGH = 200  # the fewest values for drift; with fewer, drift is large by chance


class FetchWatch:
    """Counts the `fetch_statistics` of every question and compares them with the checkpoint's reference, if any."""

    def __init__(self, reference: FetchReference | None, metrics: Metrics) -> None:
        self.metrics, self.strategy = metrics, None if reference is None else reference.strategy
        self._latest: dict[str, tuple[Distribution, deque[int]]] = {}  # with the bins of the latest values
        for name, distribution in ({} if reference is None else reference.statistics).items():
            latest = deque[int](maxlen=WINDOW)
            self._latest[name] = distribution, latest
            metrics.reference.labels(name).set(distribution.mean)
            metrics.drift.labels(name).set_function(partial(_drift, distribution, latest))

    def observe(self, prompt: EmbeddedPrompt) -> None:
        """Counts the prompts of a batch. For drift, only questions with the reference's strategy count."""
        strategy = prompt.fetch.strategy
        for name, values in fetch_statistics(prompt).items():
            for value in values.tolist():
                self.metrics.statistics.labels(name, strategy).observe(value)
                if strategy == self.strategy and name in self._latest:
                    distribution, latest = self._latest[name]
                    latest.append(distribution.bin(value))


def _drift(reference: Distribution, latest: deque[int]) -> float:
    counts = Counted(latest.copy())
    bins = [counts[number] for number in range(len(reference.counts))]
    return reference.drift(bins) if counts.total() >= ENOUGH else float("nan")
