"""How many questions per second does the server answer, compared with asking one at a time?

    python -m benchmarks.serving_throughput [MODEL] [--rounds 3] [--images 4] [--clients 1,8,32]

Three ways alternate in every round: `model.generate(image, question)` in this process; a plain server that decodes,
encodes and generates for one request at a time; and `arr-coc serve` with 1, 8 and 32 clients and streamed answers. The
questions are about few images, which each way has processed before. Figures are medians over rounds; ratios are medians
of each round's ratio. CPU seconds are less sensitive to other load (Linux).
"""

import json
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle, islice
from os import sysconf
from pathlib import Path
from typing import Any

from arr_coc.data.formats import open_records
from arr_coc.data.records import Record
from arr_coc.files import run_module
from arr_coc.loading import load_model

from .served import NAME, Case, Reply, ServedProcess, ask, cases, percentile, serve_command, serving_parser

GENERATE, PLAIN = "generate", "plain server"


@dataclass(frozen=True)
class Measured:
    """Questions per second, CPU seconds per question, and the 95th percentile of seconds to the first token."""

    rate: float
    cpu: float
    first: float


def measure(run: Callable[[], list[Reply]], cpu: Callable[[], float]) -> Measured:
    """Times a round of one way; `cpu` returns its CPU seconds so far."""
    used, began = cpu(), time.perf_counter()
    replies = run()
    seconds = time.perf_counter() - began
    assert all(reply.status == 200 for reply in replies), {reply.status for reply in replies}
    first = percentile([reply.first for reply in replies], 0.95)
    return Measured(len(replies) / seconds, (cpu() - used) / len(replies), first)


def by_clients(url: str, asked: Sequence[Case], clients: int, *, stream: bool) -> list[Reply]:
    """Asks all questions with `clients` at once."""
    with ThreadPoolExecutor(clients) as threads:
        return list(threads.map(lambda case: ask(url, case.body(stream=stream), stream=stream), asked))


def cpu_seconds(process: int) -> float:
    """CPU seconds of a process so far (Linux; else 0)."""
    stat = Path(f"/proc/{process}/stat")
    if not stat.exists():
        return 0.0
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / sysconf("SC_CLK_TCK")


def few_images(records: Sequence[Record], images: int) -> list[Record]:
    """The questions about the first `images` images."""
    first = list(dict.fromkeys(record.image for record in records))[:images]
    return [record for record in records if record.image in first]


class Comparison:
    """Measures all ways alternately.

    Args:
        model: folder or name.
        records: the questions.
        clients: numbers of concurrent clients.
        questions: questions per round for each number of clients; half as many when asking one at a time.
    """

    def __init__(self, model: str, records: Sequence[Record], clients: Sequence[int], questions: int) -> None:
        self.name, self.clients = model, clients
        self.model = load_model(model, "cpu")
        asked = cases(self.model, records)
        self.asked = list(islice(cycle(asked), questions))
        self.warm = asked

    def run(self, rounds: int) -> dict[str, list[Measured]]:
        """The figures of each way, round by round."""
        plain = ["-m", "benchmarks.serving_throughput", self.name, "--plain-server"]
        with ServedProcess(serve_command(self.name, "--port", "0")) as server, ServedProcess(plain) as sequential:
            for process in (server, sequential):
                by_clients(process.url, self.warm, 1, stream=process is server)
            ways: dict[str, Callable[[], Measured]] = {
                GENERATE: lambda: measure(self._generate, time.process_time),
                PLAIN: lambda: self._asked(sequential, 1, stream=False),
            }
            for clients in self.clients:
                ways[f"{clients} clients"] = lambda clients=clients: self._asked(server, clients, stream=True)  # type: ignore[misc]
            results: dict[str, list[Measured]] = {way: [] for way in ways}
            for _ in range(rounds):
                for way, measured in ways.items():
                    results[way].append(measured())
        return results

    def _generate(self) -> list[Reply]:
        replies = []
        for case in self.asked[: len(self.asked) // 2]:
            began = time.perf_counter()
            text = self.model.generate(case.url, case.question)
            seconds = time.perf_counter() - began
            replies.append(Reply(200, text, seconds, seconds))
        return replies

    def _asked(self, process: ServedProcess, clients: int, *, stream: bool) -> Measured:
        asked = self.asked[: len(self.asked) // 2] if clients == 1 else self.asked
        used = lambda: cpu_seconds(process.process.pid)  # noqa: E731
        return measure(lambda: by_clients(process.url, asked, clients, stream=stream), used)


def table(results: dict[str, list[Measured]]) -> str:
    """A line for each way: rate, its ratios to the two ways that ask one at a time, CPU, first token."""
    lines = ["way            questions/s  x generate  x plain server  CPU s/question  first token p95 s"]
    for way, rounds in results.items():
        ratios = [
            statistics.median(own.rate / other.rate for own, other in zip(rounds, results[against], strict=True))
            for against in (GENERATE, PLAIN)
        ]
        rate, cpu, first = (
            statistics.median(getattr(own, name) for own in rounds) for name in ("rate", "cpu", "first")
        )
        lines.append(f"{way:14} {rate:11.2f}  {ratios[0]:10.2f}  {ratios[1]:14.2f}  {cpu:14.3f}  {first:17.2f}")
    return "\n".join(lines)


def serve_plainly(name: str) -> None:
    """Runs a server that processes one request after the other."""
    model, lock = load_model(name, "cpu"), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            image, text = body["messages"][0]["content"]
            with lock:
                answer = model.generate(image["image_url"]["url"], text["text"])
            content = json.dumps({"choices": [{"message": {"content": answer}}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            """Prints nothing, as the first line on standard output is the URL."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"{NAME} at http://127.0.0.1:{server.server_port}/v1", flush=True)
    server.serve_forever()


def main() -> None:
    parser = serving_parser(__doc__, rounds=3)
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--questions", type=int, default=64, help="questions per round and number of clients")
    parser.add_argument("--clients", default="1,8,32")
    parser.add_argument("--plain-server", action="store_true", help="only run the plain server")
    args = parser.parse_args()
    if args.plain_server:
        serve_plainly(args.model)
        return
    records = few_images(open_records({"path": args.data}, limit=500), args.images)
    clients = [int(number) for number in args.clients.split(",")]
    print(table(Comparison(args.model, records, clients, args.questions).run(args.rounds)))


if __name__ == "__main__":
    run_module(main)
