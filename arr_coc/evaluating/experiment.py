"""The experiment: every arm answers the same questions with the same weights; predictions first, then numbers.

OUT/plan.yaml           what is run and how it will be judged, written before the first answer
OUT/predictions/        JSONL, one file per run and process
OUT/costs.json          operations, time to the first token, memory of each arm
OUT/result.json         the numbers
OUT/report.html, .md    the same for people
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from tqdm import tqdm
from transformers.utils import cached_file

from ..data.formats import Format
from ..data.images import HeldImage
from ..data.records import Record
from ..metrics import METRICS
from ..modeling.allocators import ALLOCATORS
from ..modeling.image_loading import load_image
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.vision_tower import ImageEncoding
from .ablating import make_trials, trial_arms
from .answering import PeerChoices, ask, encode, load_images, question_room
from .arms import Arm, make_arms
from .costs import measure_costs
from .deciding import DEFAULT_RULES, check_rules, missing_arms
from .evaluation import MAX_NEW_TOKENS, environment, shown
from .predictions import Prediction, append, mend, prediction, read_run
from .scoring import score_arm, score_experiment

UNPLANNED = ("command", "environment")
"""What may differ between the runs that fill one folder."""


@dataclass(frozen=True)
class Settings:
    """What is asked for.

    Attributes:
        metric: of `METRICS`.
        arms: names (see `make_arms`), None for all.
        budget, allocator: the checkpoint's by default.
        seeds: of random relevance.
        limit: only the first so many records.
        rules: see `deciding`; None for `DEFAULT_RULES`.
        batch_size: questions at a time, at the usual number of tokens.
        timed: records that are timed; rounds: how often each.
    """

    metric: str = "exact_match"
    arms: tuple[str, ...] | None = None
    budget: int | str | None = None
    allocator: str | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    limit: int | None = None
    rules: dict[str, Any] | None = None
    batch_size: int = 32
    timed: int = 4
    rounds: int = 3


# ---- the plan -----------------------------------------------------------------------------------------------------


def make_plan(
    model: ArrCocForConditionalGeneration, source: Format, records: Sequence[Record], settings: Settings, command: str
) -> dict[str, Any]:
    """What will be run and how it will be judged, as it is written to plan.yaml.

    Raises:
        ValueError: bad settings, rules that need arms which are not there, a metric that cannot score the answers.
    """
    rules = DEFAULT_RULES if settings.rules is None else settings.rules
    check_rules(rules)
    plan = plan_run(model, source, records, settings, command)
    missing = missing_arms(rules, [arm["name"] for arm in plan["arms"]])
    if missing:
        raise ValueError(f"rules: expected rules about arms of this experiment; got {', '.join(missing)} in them")
    return {**plan, "rules": rules}


def plan_ablation(
    model: ArrCocForConditionalGeneration, source: Format, records: Sequence[Record], settings: Settings, command: str,
    *, peers: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """As `make_plan`, but for `ablating.make_trials` (with the published rules, too, for `peers`) in place of rules.

    Raises:
        ValueError: bad settings, arms or rules among them; a metric that cannot score the answers.
    """
    for name in ("arms", "rules"):
        if getattr(settings, name) is not None:
            raise ValueError(f"{name}: expected none for an ablation, which has its own; got {getattr(settings, name)}")
    trials = make_trials(model.config, peers=peers, boxed=all(record.boxes for record in records))
    settings = replace(settings, arms=tuple(trial_arms(model.config, trials)))
    return {**plan_run(model, source, records, settings, command), "trials": [asdict(trial) for trial in trials]}


def plan_run(
    model: ArrCocForConditionalGeneration, source: Format, records: Sequence[Record], settings: Settings, command: str
) -> dict[str, Any]:
    """What will be run, on what.

    Raises:
        ValueError: bad settings, a metric that cannot score the answers.
    """
    metric = METRICS.named(settings.metric)
    for record in records:
        try:
            metric.score(record.answers[0], record.answers)
        except ValueError as error:
            raise ValueError(f"{source.title}, line {record.line}: {error}") from error
    if settings.allocator is not None:
        ALLOCATORS.named(settings.allocator)
    for name in ("batch_size", "timed", "rounds"):
        if getattr(settings, name) < 1:
            raise ValueError(f"{name}: expected at least 1; got {getattr(settings, name)}")
    arms = make_arms(
        model.config, settings.arms, budget=settings.budget, allocator=settings.allocator, seeds=settings.seeds,
        room=question_room(model, records, new_tokens(model)), boxed=all(record.boxes for record in records),
    )  # fmt: skip
    for arm in arms:
        model.model.fetcher.check_strategy(arm.strategy)
    return {
        "model": shown(model.config._name_or_path),
        "weights_sha256": _hash_weights(model.config._name_or_path),
        "data": shown(source.title),
        "data_sha256": source.digest(records),
        "images_sha256": _hash_images(records),
        "questions": len(records),
        "metric": settings.metric,
        "patch_size": model.config.vision_config.patch_size,
        "arms": [{**asdict(arm), "seeds": list(arm.seeds)} for arm in arms],
        "command": command,
        "environment": environment(model.device),
    }


def new_tokens(model: ArrCocForConditionalGeneration) -> int:
    """Tokens of an answer at most."""
    return model.generation_config.max_new_tokens or MAX_NEW_TOKENS


def plan_arms(plan: dict[str, Any]) -> list[Arm]:
    """The arms of a plan."""
    return [Arm(**{**arm, "seeds": tuple(arm["seeds"])}) for arm in plan["arms"]]


def keep_plan(out: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """Writes the plan, or reads the one that is there, which must be the same; returns that on disk.

    Raises:
        ValueError: the folder holds another experiment.
    """
    path = out / "plan.yaml"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".new")
        beside.write_text(yaml.safe_dump(plan, sort_keys=False, allow_unicode=True, width=100), encoding="utf-8")
        beside.replace(path)
        return plan
    kept = read_plan(out)
    changed = [name for name in {**plan, **kept} if name not in UNPLANNED and plan.get(name) != kept.get(name)]
    if changed:
        raise ValueError(f"{out}: expected an empty folder or the same experiment's; got other {', '.join(changed)}")
    return kept


def read_plan(out: Path) -> dict[str, Any]:
    """The plan in a folder.

    Raises:
        ValueError: there is none.
    """
    path = out / "plan.yaml"
    if not path.is_file():
        raise ValueError(f"{out}: expected the folder of an experiment (with plan.yaml); got none")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _hash_weights(source: str) -> str:
    """sha256 over all weight files of a checkpoint, in the order of their names."""
    folder = Path(source)
    if not folder.is_dir():
        found = cached_file(source, "config.json")
        assert found is not None
        folder = Path(found).parent
    return _hash_files(sorted(folder.glob("*.safetensors")))


def _hash_files(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _hash_images(records: Sequence[Record]) -> str:
    """sha256 over the image files in the order of their paths, then over the pixels of images that are no files."""
    images = dict.fromkeys(record.image for record in records)
    digest = hashlib.sha256()
    for path in sorted(image for image in images if isinstance(image, Path)):
        digest.update(path.read_bytes())
    for image in images:
        if isinstance(image, HeldImage):
            digest.update(load_image(image.make()).tobytes())
    return digest.hexdigest()


def check_data(plan: dict[str, Any], source: Format, records: Sequence[Record]) -> None:
    """Refuses other data than the plan's.

    Raises:
        ValueError: another file, other images, or another number of records.
    """
    if source.digest(records) != plan["data_sha256"] or len(records) != plan["questions"]:
        raise ValueError(f"{source.title}: expected the data of the plan ({plan['questions']} records); got other data")


# ---- predicting ---------------------------------------------------------------------------------------------------


def predict(
    model: ArrCocForConditionalGeneration,
    arms: Sequence[Arm],
    records: Sequence[Record],
    folder: Path,
    *,
    batch_size: int = 32,
    shard: tuple[int, int] = (0, 1),
    progress: bool = True,
) -> int:
    """Answers what is not answered yet, and appends it to the files of this process; returns how many answers.

    Args:
        model: with a processor.
        arms, records: of the plan.
        folder: for the predictions; files of other processes and earlier calls count as done.
        batch_size: questions at a time at the first arm's number of tokens; arms with more take fewer.
        shard: (number of this process, number of processes): every process takes whole images.
        progress: show a progress bar (on standard error).
    """
    folder.mkdir(parents=True, exist_ok=True)
    place, processes = shard
    runs = [(arm, run, seed) for arm in arms for run, seed in arm.runs.items()]
    for _, run, _ in runs:
        mend(folder / f"{run}-{place}.jsonl")
    done = {run: set(read_run(folder, run)) for _, run, _ in runs}
    made = 0
    ours = [group for number, group in enumerate(_by_image(records)) if number % processes == place]
    total = sum(record.line not in done[run] for group in ours for record in group for run in done)
    with tqdm(total=total, unit="answer", disable=not progress) as bar:
        for batch in _batches(ours, batch_size):
            encodings: dict[int, ImageEncoding] = {}
            images = list(dict.fromkeys(record.image for record in batch))
            choices = PeerChoices(model, arms)
            for arm, run, seed in runs:
                left = [record for record in batch if record.line not in done[run]]
                if left and arm.side not in encodings:
                    encodings[arm.side] = encode(model, load_images(model, images), arm.side)
                size = max(1, batch_size * arms[0].tokens // max(arms[0].tokens, arm.tokens))
                for start in range(0, len(left), size):
                    part = left[start : start + size]
                    slots = torch.tensor([images.index(record.image) for record in part])
                    said = _answers(model, arm, part, encodings[arm.side].select(slots), seed, choices)
                    append(folder / f"{run}-{place}.jsonl", said)
                    made += len(part)
                    bar.update(len(part))
    return made


def _answers(
    model: ArrCocForConditionalGeneration,
    arm: Arm,
    records: Sequence[Record],
    encoding: ImageEncoding,
    seed: int | None,
    choices: PeerChoices,
) -> list[Prediction]:
    """The arm's, to be kept; `encoding` holds one image per record."""
    answers = ask(model, arm, records, encoding, seed=seed, choices=choices, max_new_tokens=new_tokens(model))
    assert encoding.source_sizes is not None
    return [
        prediction(record.line, answer, encoding.base_positions + answer.fetch.budget, encoding.side, size_yx)
        for record, answer, size_yx in zip(records, answers, encoding.source_sizes, strict=True)
    ]


def _by_image(records: Sequence[Record]) -> list[list[Record]]:
    groups: dict[Path | HeldImage, list[Record]] = {}
    for record in records:
        groups.setdefault(record.image, []).append(record)
    return list(groups.values())


def _batches(groups: Sequence[list[Record]], batch_size: int) -> Iterator[list[Record]]:
    """Records of whole images, at least `batch_size` of them but for the last batch."""
    batch: list[Record] = []
    for group in groups:
        batch += group
        if len(batch) >= batch_size:
            yield batch
            batch = []
    if batch:
        yield batch


# ---- all of it ----------------------------------------------------------------------------------------------------


def keep_costs(
    out: Path, model: ArrCocForConditionalGeneration, arms: Sequence[Arm], records: Sequence[Record], settings: Settings
) -> dict[str, Any]:
    """The costs of each arm, measured once per folder."""
    path = out / "costs.json"
    if path.is_file():
        return json.loads(path.read_text(encoding="utf-8"))
    first = [group[0] for group in _by_image(records)[: settings.timed]]
    costs = {
        "arms": measure_costs(model, arms, first, rounds=settings.rounds),
        "images": len(first),
        "rounds": settings.rounds,
        "environment": environment(model.device),
    }
    write_json(path, costs)
    return costs


def rescore(out: Path, records: Sequence[Record], *, metric: str | None = None) -> dict[str, Any]:
    """The numbers from the predictions in a folder, without the model; writes result.json.

    Args:
        out: the experiment's folder.
        records: of the plan.
        metric: another than the plan's; the result says so.

    Raises:
        ValueError: predictions are missing.
    """
    plan = read_plan(out)
    used = plan["metric"] if metric is None else metric
    arms = plan_arms(plan)
    scored = [score_arm(out / "predictions", arm, records, used, plan["patch_size"]) for arm in arms]
    result = score_experiment(scored, records, used, plan["rules"], plan["patch_size"])
    costs = out / "costs.json"
    found = json.loads(costs.read_text(encoding="utf-8")) if costs.is_file() else None
    result = {"metric": used, "planned_metric": plan["metric"], **result, "costs": found}
    write_json(out / "result.json", result)
    return result


def write_json(path: Path, content: Any) -> None:
    """Writes all of the file or nothing."""
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    beside.replace(path)
