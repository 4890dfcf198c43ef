"""Costs of an arm for one image and one question, encoder included: operations, time to the first token, memory."""

import copy
import time
import weakref
from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from tqdm import tqdm

from ..data.records import Record
from ..evaluation.answers import ask, encode, load_images
from ..evaluation.arms import Arm
from ..evaluation.peer_rules import PEERS
from ..evaluation.peers import choose
from ..model_summary import count_flops, on_meta
from ..modeling.configuration_arr_coc import ArrCocConfig
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration


class LiveTensors(TorchDispatchMode):
    """Counts the bytes of live tensors that operations create; the count is the same on every device and machine.

    It omits weights, other tensors that existed before, and scratch space inside operations.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments = (args, kwargs or {})
        before = {_storage(tensor) for tensor in tree_leaves(arguments) if isinstance(tensor, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and _storage(tensor) not in before | self._known:
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)

        def gone() -> None:
            self._known.discard(key)
            self.now -= size

        weakref.finalize(storage, gone)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


FEWEST_TIMINGS = 200
"""The fewest timings for p95 and p99: the 99th percentile of 12 timings would be the slowest one."""


class Percentiles(TypedDict):
    """Percentiles of times, ms; None if there are too few."""

    p50: float
    p95: float | None
    p99: float | None


class ArmCost(TypedDict):
    """The costs of one arm from `measure_costs`."""

    flops: int
    flops_by_stage: dict[str, int]
    first_token_ms: dict[str, float | None]
    peak_bytes: int


class Costs(TypedDict):
    """The costs in an experiment's folder: arms, the numbers of timed images and rounds, and the machine."""

    arms: dict[str, dict[str, Any]]
    images: int
    rounds: int
    environment: dict[str, Any]


def first_token(model: ArrCocForConditionalGeneration, arm: Arm, image: Any, record: Record) -> None:
    """Computes the first token of the answer from a decoded image, with nothing prepared.

    For base tokens of another page it uses the image's own, which cost the same.
    """
    encoding = encode(model, [image], arm.side, prefill=False)
    if arm.rule == "patches_only":
        encoding = encoding.without_base()
    ask(model, arm, [record], encoding, seed=next(iter(arm.seeds), None), max_new_tokens=1, min_new_tokens=1)


Asked = tuple[ArrCocForConditionalGeneration, Arm]
"""An arm, and the model that answers for it."""


def time_to_first_token(
    asked: Sequence[Asked], records: Sequence[Record], *, rounds: int
) -> dict[str, dict[str, float | None]]:
    """Milliseconds of each arm: {"p50", "p95", "p99"} over `records` x `rounds`; None for too few timings.

    The arms alternate on every record in a rotating order, so that other load on the machine slows all of them equally.
    """
    images = load_images(asked[0][0], [record.image for record in records])
    taken: dict[str, list[float]] = {arm.name: [] for _, arm in asked}
    for model, arm in asked:  # warm-up: first calls allocate and choose kernels
        first_token(model, arm, images[0], records[0])
    for turn in tqdm(range(rounds * len(records)), desc="timing", unit="round", disable=None):
        record = turn % len(records)
        for place in range(len(asked)):
            model, arm = asked[(turn + place) % len(asked)]
            began = time.perf_counter()
            first_token(model, arm, images[record], records[record])
            if model.device.type == "cuda":
                torch.cuda.synchronize(model.device)
            taken[arm.name].append(1000 * (time.perf_counter() - began))
    return {name: percentiles(values) for name, values in taken.items()}


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """{"p50", "p95", "p99"}; the latter two None below `FEWEST_TIMINGS` values."""
    enough = len(values) >= FEWEST_TIMINGS
    return {
        f"p{share}": float(np.percentile(values, share)) if share == 50 or enough else None for share in (50, 95, 99)
    }


def peak_bytes(model: ArrCocForConditionalGeneration, arm: Arm, record: Record) -> int:
    """Peak bytes of live tensors until the first token, without the weights (see `LiveTensors`)."""
    (image,) = load_images(model, [record.image])
    with LiveTensors() as counter:
        first_token(model, arm, image, record)
    return counter.peak


def count_arm_flops(config: ArrCocConfig, arm: Arm, question_tokens: int) -> dict[str, int]:
    """FLOPs by stage, counted on shapes alone (see `count_flops`)."""
    changed = copy.deepcopy(config)
    changed.vision_config.image_size = arm.side
    changed.fetcher_config.strategy = arm.strategy
    reads_base = arm.rule != "patches_only"
    budget = arm.budget * (arm.passes if isinstance(arm.passes, int) else 1)
    return count_flops(on_meta(changed), budget=budget, question_tokens=question_tokens, reads_base=reads_base)


def count_choice_flops(model: ArrCocForConditionalGeneration, arm: Arm, record: Record) -> int:
    """FLOPs of a peer's rule on one record, including its forward pass with all patches; 0 for other arms.

    They are counted on the real model, as each rule runs different parts of it.
    """
    if arm.rule not in PEERS:
        return 0
    encoding = encode(model, load_images(model, [record.image]), arm.side, prefill=False)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        choose(model, [(PEERS[arm.rule], arm.budget)], encoding, record.question)
    return counter.get_total_flops()


def measure_costs(asked: Sequence[Asked], records: Sequence[Record], *, rounds: int) -> dict[str, dict[str, Any]]:
    """{arm: {"flops": to the first token, "flops_by_stage", "first_token_ms", "peak_bytes"}}.

    Args:
        asked: arms and their models with processors, measured side by side; each arm can have its own model.
        records: the timed records.
        rounds: number of timings per record.
    """
    tokenizer = asked[0][0].processor.tokenizer
    lengths = [len(tokenizer(record.question, add_special_tokens=False)["input_ids"]) for record in records]
    question_tokens = max(1, round(float(np.mean(lengths))))
    times = time_to_first_token(asked, records, rounds=rounds)
    costs: dict[str, dict[str, Any]] = {}
    counted: dict[tuple[int, int, str, int, int | str, bool], dict[str, int]] = {}
    for model, arm in tqdm(asked, desc="counting", unit="arm", disable=None):
        shapes = id(model), arm.side, arm.strategy, arm.budget, arm.passes, arm.rule == "patches_only"
        if shapes not in counted:
            counted[shapes] = count_arm_flops(model.config, arm, question_tokens)
        stages = dict(counted[shapes])
        stages["fetcher"] += count_choice_flops(model, arm, records[0])
        costs[arm.name] = {
            "flops": sum(count for stage, count in stages.items() if stage != "one decode step"),
            "flops_by_stage": stages,
            "first_token_ms": times[arm.name],
            "peak_bytes": peak_bytes(model, arm, records[0]),
        }
    return costs
