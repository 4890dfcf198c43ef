"""Two replicas on one machine: one image's questions meet at one of them; a killed one, or an update, costs no answer.

Needs the extra "ray", and a minute or more.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
pytest.importorskip("ray.serve")

import openai
import ray
import yaml
from helpers import png
from ray import serve
from serving_client import chat, data_url, noise, until

from arr_coc.loading import load_model
from arr_coc.serving.ray_app import REPLICA, RayArguments, build
from arr_coc.serving.settings import ServerSettings

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's, of its own parts

QUESTION = "What is the total?"
IMAGES = [png(noise(seed)) for seed in range(8)]
HEADER = REPLICA.decode()
PAUSE = 120.0
"""Seconds that a replica may take to start: it imports torch."""


def arguments(checkpoint: Path, **changes: Any) -> RayArguments:
    settings = {"cache_tokens": 4096, "image_workers": 1, "answer_seconds": 120.0}
    replicas = {"cpus": 0.1, "min_replicas": 2, "max_replicas": 2, "surge_percent": 100}
    named = {"model": str(checkpoint), "name": "tiny", "device": "cpu", "secret": "a secret of the tests"}
    return RayArguments(**named, **replicas, settings=settings, **changes)


@pytest.fixture(scope="module")
def client(checkpoint: Path) -> Iterator[openai.OpenAI]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.MonkeyPatch.context() as patch:
        for check in ("READY_CHECK", "HEALTH_CHECK"):  # on a busy machine it takes longer than 5 s to start
            patch.setenv(f"RAY_SERVE_PROXY_{check}_TIMEOUT_S", f"{PAUSE}")
        patch.setenv("RAY_raylet_start_wait_time_s", f"{PAUSE:.0f}")
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(build(arguments(checkpoint)), name="arr-coc", route_prefix="/")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=0, timeout=240) as asking:
        yield asking
    serve.shutdown()
    ray.shutdown()


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> list[str]:
    model = load_model(str(checkpoint), "cpu")
    return [model.generate(content, QUESTION) for content in IMAGES]


def ask(client: openai.OpenAI, url: str, **options: Any) -> tuple[str, str]:
    """The answer, and the replica that gave it."""
    raw = client.chat.completions.with_raw_response.create(model="tiny", messages=chat(QUESTION, url), **options)
    return raw.parse().choices[0].message.content or "", raw.headers[HEADER]


def replicas() -> list[str]:
    """Names of the actors that are replicas of the model."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return [actor["name"] for actor in named if "#Replica#" in actor["name"]]


def under_load(client: openai.OpenAI, expected: list[str], disturb: Callable[[], None]) -> list[tuple[int, str]]:
    """Asks about all images in turn while something happens, and a while after; (image, replica) of each answer."""
    answered, over = [], threading.Event()

    def ask_on(start: int) -> None:
        number = start
        while not over.is_set():
            text, replica = ask(client, data_url(IMAGES[number % 8]))
            assert text == expected[number % 8]
            answered.append((number % 8, replica))
            number += 1

    with ThreadPoolExecutor(4) as threads:
        jobs = [threads.submit(ask_on, 2 * start) for start in range(4)]
        assert until(lambda: len(answered) >= 8, PAUSE)
        disturb()
        count = len(answered)
        assert until(lambda: len(answered) >= count + 16, PAUSE)
        over.set()
        for job in jobs:
            job.result(PAUSE)  # no error: nothing was lost
    return answered


def test_one_images_questions_meet_at_one_replica(client: openai.OpenAI, expected: list[str]) -> None:
    seen: dict[int, set[str]] = {}
    for _ in range(3):
        for number, content in enumerate(IMAGES):
            text, replica = ask(client, data_url(content))
            assert text == expected[number]
            seen.setdefault(number, set()).add(replica)
    assert all(len(own) == 1 for own in seen.values()) and len(set.union(*seen.values())) == 2
    for number in range(4):
        held: Any = client.post("/encodings", cast_to=object, body={"image": data_url(IMAGES[number])})
        assert ask(client, held["id"]) == (expected[number], *seen[number])


def test_a_killed_replica_costs_no_answer(client: openai.OpenAI, expected: list[str]) -> None:
    before = replicas()
    assert len(before) == 2

    def kill() -> None:
        ray.kill(ray.get_actor(before[0], namespace="serve"))

    answered = under_load(client, expected, kill)
    assert len(answered) >= 24
    assert until(lambda: len(replicas()) == 2 and before[0] not in replicas(), PAUSE)  # another takes its place


def test_the_shipped_file_deploys_what_there_is() -> None:
    shipped = yaml.safe_load((Path(__file__).parents[1] / "examples/ray_serve.yaml").read_text())
    (application,) = shipped["applications"]
    given = RayArguments(**application["args"])
    assert application["import_path"] == f"{build.__module__}:{build.__name__}"
    assert ServerSettings(**given.settings).answer_seconds == 60
