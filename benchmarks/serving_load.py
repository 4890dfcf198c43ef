"""Does the server lose, mix up or leak anything when its clients misbehave?

    python -m benchmarks.serving_load [MODEL] [--requests 10000] [--clients 32] [--questions 72]

Many clients ask about the pages of a data set; some disconnect, send slowly, or send broken images or too much data.
After a quarter of the requests an image worker is killed. After half of them the server gets SIGTERM and another one
replaces it; clients try again. Every answer must equal the one of `generate` in this process. The exit code is 1 if an
answer is lost, mixed up or incomplete, if a valid request is refused, or if memory grows.
"""

import http.client
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from arr_coc.data.formats import open_records
from arr_coc.loading import load_model

from .served import Case, Reply, ServedProcess, ask, cases, leave, percentile, serve_command, serving_parser

BODY_LIMIT = 1
"""The server's limit of a request, MiB; requests that are too large have twice that."""

KINDS = {"plain": 46, "streamed": 40, "slow": 4, "vanishing": 4, "half": 2, "broken": 3, "oversized": 1}
"""Kinds of clients and their frequencies. Slow bodies are complete in the end; half bodies are never complete."""

GROWTH = 1.10
"""The largest ratio of a server's memory at the end to that after a fifth of its requests."""


@dataclass
class Report:
    """The results of a run.

    Attributes:
        ended: requests by kind.
        lost: questions without an answer after all retries.
        crossed: answers that differ from those of `generate`.
        broken: incomplete or missing answers while a server was running.
        wrong: unexpected statuses, by kind.
        retries: repeated requests by status (0: no reply, as a server was ending).
        first, total: seconds to the first token of streamed answers, and to the last token of all.
        memory: resident bytes of each server after a fifth of its requests and at its end.
    """

    ended: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    crossed: int = 0
    broken: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    retries: Counter[int] = field(default_factory=Counter)
    first: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def growth(self) -> float:
        """The largest growth of a server's memory, as a ratio."""
        return max((end / start for start, end in self.memory if start), default=1.0)

    @property
    def good(self) -> bool:
        """Whether nothing is lost, mixed up or leaked."""
        return not (self.lost or self.crossed or self.broken or self.wrong) and self.growth <= GROWTH

    def text(self) -> str:
        """The results, one per line."""
        count = sum(self.ended.values())
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.ended.items()))
        p50, p95 = (percentile(self.first, part) for part in (0.5, 0.95))
        sizes = "; ".join(f"{start / 2**20:.0f} to {end / 2**20:.0f} MiB" for start, end in self.memory)
        return "\n".join(
            (
                f"requests   {count} in {self.seconds:.0f} s ({count / self.seconds:.1f}/s): {kinds}",
                f"lost {self.lost}, crossed {self.crossed}, broken off {self.broken}, wrong {dict(self.wrong)}",
                f"retries    {dict(self.retries)}",
                f"first token  p50 {p50:.2f} s, p95 {p95:.2f} s; whole answer p95 {percentile(self.total, 0.95):.2f} s",
                f"memory     {sizes} (at most {self.growth:.2f} times)",
            )
        )


class Load:
    """All clients of one run, and their servers.

    Args:
        command: starts a server on a free port, or on the port that is appended.
        asked: the questions.
        requests: number of requests.
        clients: number of concurrent clients.
        seed: seed of the clients' behaviour.
    """

    def __init__(self, command: list[str], asked: list[Case], requests: int, clients: int, seed: int = 0) -> None:
        self.command, self.asked, self.requests, self.clients = command, asked, requests, clients
        self.report, self._lock = Report(), threading.Lock()
        die = random.Random(seed)
        kinds = die.choices([*KINDS], [*KINDS.values()], k=requests)
        self._plan = iter([(kind, die.choice(asked), die.random()) for kind in kinds])
        self._oversized = b'{"padding": "' + b"x" * (2 * BODY_LIMIT * 2**20) + b'"}'
        self._changing = threading.Event()  # set while a server is ending: connections can be refused
        self._done = 0

    def run(self) -> Report:
        """Runs all requests."""
        self.server = ServedProcess([*self.command, "--port", "0"])
        self.url, began = self.server.url, time.perf_counter()
        threads = [threading.Thread(target=self._client) for _ in range(self.clients)]
        for thread in threads:
            thread.start()
        self._disturb()
        for thread in threads:
            thread.join()
        self.report.seconds = time.perf_counter() - began
        self.report.memory.append((self._early, self.server.memory()))
        self.server.end()
        return self.report

    def _disturb(self) -> None:
        self._early = self._memory_after(self.requests // 10)
        self._wait_for(self.requests // 4)
        os.kill(self.server.descendants()[-1], signal.SIGKILL)
        self._wait_for(self.requests // 2)
        self.report.memory.append((self._early, self.server.memory()))
        self._changing.set()
        self.server.end()
        port = self.url.rpartition(":")[2].partition("/")[0]
        self.server = ServedProcess([*self.command, "--port", port])
        self._changing.clear()
        self._early = self._memory_after(self._done + self.requests // 10)

    def _memory_after(self, done: int) -> int:
        self._wait_for(done)
        return self.server.memory()

    def _wait_for(self, done: int) -> None:
        while self._done < min(done, self.requests):
            time.sleep(0.05)

    def _client(self) -> None:
        while True:
            with self._lock:
                step = next(self._plan, None)
            if step is None:
                return
            kind, case, chance = step
            self._do(kind, case, chance)
            with self._lock:
                self._done += 1
                self.report.ended[kind] += 1

    def _do(self, kind: str, case: Case, chance: float) -> None:
        body = case.body(stream=kind == "streamed")
        if kind in ("vanishing", "half"):
            leave(self.url, body, part=0.5 if kind == "half" else 1.0, after=chance)
        elif kind == "broken":
            damaged = case.url[: 200 + int(chance * 400) // 4 * 4]
            self._expect(kind, 400, lambda: ask(self.url, Case(case.question, damaged, "").body()))
        elif kind == "oversized":
            self._expect(kind, 413, lambda: ask(self.url, self._oversized))
        else:
            pause = 0.1 + 0.3 * chance if kind == "slow" else 0.0
            reply = self._expect(kind, 200, lambda: ask(self.url, body, stream=kind == "streamed", pause=pause))
            with self._lock:
                self.report.crossed += reply.status == 200 and reply.text != case.expected
                self.report.total += [reply.total] * (reply.status == 200)
                self.report.first += [reply.first] * (kind == "streamed" and reply.status == 200)

    def _expect(self, kind: str, status: int, send: Callable[[], Reply]) -> Reply:
        """Sends a request until a server accepts it."""
        for _ in range(1000):
            changing = self._changing.is_set()
            try:
                reply = send()
            except (OSError, http.client.HTTPException, ValueError) as error:
                # A server can close the connection while a refused body is still being sent.
                if kind == "oversized" and isinstance(error, ConnectionError):
                    return Reply(status)
                with self._lock:
                    self.report.retries[0] += 1
                    self.report.broken += not (changing or self._changing.is_set())
                time.sleep(0.2)
                continue
            if reply.status not in (429, 503):
                with self._lock:
                    if reply.status != status:
                        self.report.wrong[f"{kind}: {reply.status} {reply.text[:80]}"] += 1
                return reply
            with self._lock:
                self.report.retries[reply.status] += 1
            time.sleep(0.2)
        with self._lock:
            self.report.lost += 1
        return Reply(0)


def main() -> int:
    parser = serving_parser(__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument(
        "--questions", type=int, default=72, help="number of different questions (the first of the data)"
    )
    args = parser.parse_args()
    records = list(islice(open_records({"path": args.data}), args.questions))
    asked = cases(load_model(args.model, "cpu"), records)
    command = serve_command(args.model, "--max-body", str(BODY_LIMIT), "--encodings", "24")
    report = Load(command, asked, args.requests, args.clients).run()
    print(report.text())
    return 0 if report.good else 1


if __name__ == "__main__":
    raise SystemExit(main())
