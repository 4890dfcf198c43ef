"""The plan of a checkpoint, from headers and configs only; refuses sources that do not fit.

In a plan every published tensor is loaded, or left out for a reason. Every tensor of the checkpoint is loaded, or is
new and has a recipe. The tokenizer gets the tokens for images.
"""

import re
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_state_dict_into_shards_factory
from transformers import AddedToken, GenerationConfig, PreTrainedTokenizerFast

from ..files import read_json
from ..loading import DTYPES, refused
from ..modeling.configuration_arr_coc import ArrCocConfig
from ..modeling.image_processing_arr_coc import ArrCocImageProcessor
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.processing_arr_coc import ArrCocProcessor
from ..modeling.prompt import query_markers
from ..modeling.scorers import SCORERS
from .families import EMBEDDINGS, HEAD, Mapping, PromptTokens, PublishedFamily, TensorRows, family_of
from .published import CLIP_RECIPE, CLIP_TEXT, QUESTION, WORDS, words_in_common
from .sources import WeightsSource

FILES = ("tokenizer_config.json", "special_tokens_map.json")  # optional files that are read with tokenizer.json
ANSWER_TOKENS = 512  # the default limit of an answer's tokens, enough for a dense paragraph


def load_tokenizer(source: WeightsSource, prompting: PromptTokens) -> PreTrainedTokenizerFast:
    """Loads the tokenizer of `source` and adds the tokens `prompting.added`. Raises ValueError: `source` has no
    tokenizer, or the tokenizer cannot be read or lacks a token that prompts need."""
    with tempfile.TemporaryDirectory() as folder:  # without config.json, which can name custom classes
        shutil.copyfile(source.file("tokenizer.json"), Path(folder) / "tokenizer.json")
        for name in FILES:
            path = source.optional(name)
            if path is not None:
                shutil.copyfile(path, Path(folder) / name)
        with refused(str(source), "a tokenizer that can be read"):
            tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.name_or_path = ""
    for name in ("is_local", "local_files_only"):  # arguments of loading, which transformers would save
        tokenizer.init_kwargs.pop(name, None)
    known = tokenizer.get_vocab()
    missing = [token for token in prompting.needed if token not in known]
    if tokenizer.eos_token is None:
        missing.append("eos_token")
    if prompting.chat_template is not None and tokenizer.bos_token is None:
        missing.append("bos_token")
    if missing:
        needed = ", ".join([*prompting.needed, "an eos_token"])
        raise ValueError(f"{source}: expected a tokenizer with {needed}; got no {', '.join(missing)}")
    lacking = [AddedToken(token, special=True, normalized=False) for token in prompting.added if token not in known]
    tokenizer.add_tokens(lacking, special_tokens=True)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def make_processor(
    config: ArrCocConfig, tokenizer: PreTrainedTokenizerFast, prompting: PromptTokens
) -> ArrCocProcessor:
    """The processor for `config`."""
    vision = config.vision_config
    size = {"height": vision.image_size, "width": vision.image_size}
    tokenizer.model_max_length = min(tokenizer.model_max_length, config.text_config.max_position_embeddings)
    return ArrCocProcessor(
        ArrCocImageProcessor(size=size, patch_size=vision.patch_size),
        tokenizer,
        chat_template=prompting.chat_template,
        budget=config.fetcher_config.budget if SCORERS[config.fetcher_config.strategy].fetches else 0,
        image_token=prompting.image_token,
        excludes_base=config.excludes_base,
        layout=config.bridge_config.layout,
    )


def make_generation_config(source: WeightsSource, tokenizer: PreTrainedTokenizerFast) -> GenerationConfig:
    """Greedy decoding, with the language model's end tokens."""
    path = source.optional("generation_config.json")
    published: dict[str, Any] = {} if path is None else read_json(path)
    names = ("eos_token_id", "bos_token_id", "pad_token_id")
    own = {name: getattr(tokenizer, name) for name in names}
    ids = {name: own[name] if published.get(name) is None else published[name] for name in names}
    return GenerationConfig(do_sample=False, max_new_tokens=ANSWER_TOKENS, **ids)


STORED = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
"""Supported types of published weights, by safetensors' names."""

STARTED = "the model's own random start"
NEW = {
    r"model\.vision_tower\.saccade_projection\.weight": "the compressor's two convolutions as one matrix",
    r"model\.vision_tower\.semantic_encoder\.saccade_embedding": "zero",
    r"model\.bridge\.level\.weight": "zero",
    r"model\.bridge\.adapter\.correction\.(weight|bias)": "zero: the adapter starts as the identity",
    r"model\.deepstack\.levels\.\w+\.fc2\.(weight|bias)": "zero: nothing is added to the language model's layers",
    r"model\.(bridge|deepstack|fetcher)\..+": STARTED,
}
"""Patterns of tensors that can be new, and their recipes; the first match counts."""


@dataclass(frozen=True)
class Request:
    """The arguments of `make_plan`."""

    # Sources by role: "vision", "llm", and optionally "clip-text" for scorer "clip_query".
    sources: dict[str, WeightsSource]
    bridge: str = "linear"  # a registered bridge
    scorers: tuple[str, ...] = ("realizer",)  # registered scorers; the first one is the default strategy
    dtype: str | None = None  # a name in `DTYPES`; None: the type of the vision encoder
    max_shard_size: int | str = "5GB"  # bytes, or a text as "5GB"
    seed: int = 0  # seed of the randomly initialised weights


@dataclass(frozen=True)
class Target:
    """A tensor of the checkpoint to write, and its origin.

    `rows`: the published rows; empty if the tensor is new. `recipe`: the initialisation of a new tensor. `extra_rows`:
    the number of rows after the published ones, for added tokens; each is the mean of the published rows.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    rows: tuple[TensorRows, ...] = ()
    recipe: str | None = None
    extra_rows: int = 0

    @property
    def numel(self) -> int:
        return torch.Size(self.shape).numel()

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize


@dataclass
class Plan:
    """The plan that `writer.write` carries out and `report` shows. `targets`: in the order of the state dict; `shards`:
    file names and the targets in each; `left_out`: source, name, reason."""

    request: Request
    config: ArrCocConfig
    targets: dict[str, Target]
    shards: dict[str, list[str]]
    processor: ArrCocProcessor
    generation: GenerationConfig
    left_out: list[tuple[WeightsSource, str, str]] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return sum(target.nbytes for target in self.targets.values())


def skeleton(config: ArrCocConfig) -> ArrCocForConditionalGeneration:
    """The model without memory for its weights."""
    with torch.device("meta"):
        return ArrCocForConditionalGeneration(config).eval()


def make_plan(request: Request) -> Plan:
    """Plans a checkpoint; reads headers, configs and the tokenizer, but no weights. Raises ValueError: the result would
    not be a complete and correct checkpoint."""
    families = {role: _family(role, source) for role, source in request.sources.items()}
    llm = request.sources["llm"]
    prompting = families["llm"].prompting
    tokenizer = load_tokenizer(llm, prompting)
    image_token_id: Any = tokenizer.convert_tokens_to_ids(prompting.image_token)  # one token gives a number
    config = _config(request, families, len(tokenizer), image_token_id)
    config.query_markers = query_markers(tokenizer, prompting.image_token)
    model = skeleton(config)
    held = model.state_dict()
    tied = model._tied_weights_keys if config.tie_word_embeddings else {}
    wanted = {name: tuple(tensor.shape) for name, tensor in held.items() if name not in (tied or {})}
    mappings = _mappings(request, families, wanted)
    loaded = {name: rows for mapping in mappings for name, rows in mapping.loaded.items()}
    dtype = DTYPES[str(config.dtype).removeprefix("torch.")]
    targets = {
        name: _target(name, shape, dtype if held[name].is_floating_point() else held[name].dtype, loaded.get(name))
        for name, shape in wanted.items()
    }
    if CLIP_TEXT in request.sources:
        words_in_common(request.sources[CLIP_TEXT], tokenizer)  # raises now an error that fitting would raise later
        targets[QUESTION] = replace(targets[QUESTION], recipe=CLIP_RECIPE)
    shards = split_state_dict_into_shards_factory(
        targets,
        get_storage_size=lambda target: target.nbytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=request.max_shard_size,
    )
    return Plan(
        request=request,
        config=config,
        targets=targets,
        shards=shards.filename_to_tensors,
        processor=make_processor(config, tokenizer, prompting),
        generation=make_generation_config(llm, tokenizer),
        left_out=[(m.source, name, reason) for m in mappings for name, reason in m.left_out.items()],
    )


def _family(role: str, source: WeightsSource) -> PublishedFamily:
    family = family_of(source)
    if role not in family.roles:
        received = f"{source}, which can be {', '.join(family.roles)}"
        raise ValueError(f"--{role}: expected a model that can be {role}; got {received}")
    return family


def _config(request: Request, families: dict[str, PublishedFamily], tokens: int, image_token_id: int) -> ArrCocConfig:
    vision, llm = request.sources["vision"], request.sources["llm"]
    grid, semantic = families["vision"].vision_configs(vision)
    text = families["llm"].text_config(llm)
    text["vocab_size"] = _vocabulary(llm, text, tokens)
    kinds = {name: SCORERS[name] for name in request.scorers}
    trained = [name for name, kind in kinds.items() if kind.trained]
    fetcher: dict[str, Any] = {"strategy": request.scorers[0], "scorers": trained}
    if CLIP_TEXT in request.sources:
        if "clip_query" not in trained:
            raise ValueError(f'--{CLIP_TEXT}: expected scorer "clip_query" beside it; got {", ".join(request.scorers)}')
        fetcher["shared_size"] = request.sources[CLIP_TEXT].shape(WORDS)[1]
    bridge = {"kind": request.bridge, **families["llm"].bridge_config(llm, request.bridge)}
    try:
        config = ArrCocConfig(
            vision_config=grid,
            semantic_config=semantic,
            text_config=text,
            fetcher_config=fetcher,
            bridge_config=bridge,
            image_token_id=image_token_id,
        )
    except (TypeError, AttributeError, KeyError) as error:  # the config does not have the form of its family
        raise ValueError(f"{llm}: expected a config of {text['model_type']}; got {error}") from error
    config.dtype = DTYPES[request.dtype] if request.dtype else _stored_dtype(vision)
    config.architectures = [ArrCocForConditionalGeneration.__name__]
    return config


def _vocabulary(llm: WeightsSource, text: dict[str, Any], tokens: int) -> int:
    """Rows of the embeddings: the published number if it covers the tokenizer, else the number of tokens. Raises
    ValueError: config.json lacks the number, or does not match the table."""
    for name in ("vocab_size", "hidden_size"):
        if not isinstance(text.get(name), int):
            raise ValueError(f"{llm}: expected {name} of the language model in config.json; got {text.get(name)!r}")
    for table in (name for name in llm.tensors if name.endswith("model.embed_tokens.weight")):
        llm.agree("vocabulary and width", list(llm.shape(table)), [text["vocab_size"], text["hidden_size"]])
    return max(tokens, text["vocab_size"])


def _stored_dtype(source: WeightsSource) -> torch.dtype:
    """The type of most weights of `source`."""
    counts: Counter[str] = Counter()
    for info in source.tensors.values():
        counts[info.dtype] += info.numel
    stored = STORED.get(counts.most_common(1)[0][0])
    return torch.float32 if stored is None or stored not in DTYPES.values() else stored


def _mappings(
    request: Request, families: dict[str, PublishedFamily], wanted: dict[str, tuple[int, ...]]
) -> list[Mapping]:
    """One mapping for each distinct source. Raises ValueError: a published tensor is neither loaded nor left out; a
    tensor of ours has two sources, or none."""
    mappings, origins = [], dict[str, WeightsSource]()
    for source in dict.fromkeys(request.sources.values()):
        roles = {role for role, origin in request.sources.items() if origin is source}
        mapping = Mapping(source)
        families[min(roles)].map(mapping, roles, wanted)
        placed = {rows.name for name, parts in mapping.loaded.items() if name in wanted for rows in parts}
        if unknown := sorted(source.tensors.keys() - placed - mapping.left_out.keys()):
            received = f"{len(unknown)} without, e.g. {unknown[0]}"
            raise ValueError(f"{source}: expected only tensors with a place here; got {received}")
        for name in mapping.loaded:
            if name in origins:
                raise ValueError(f"{name}: expected one source; got {origins[name]} and {source}")
            origins[name] = source
        mappings.append(mapping)
    if missing := [name for name in wanted if name not in origins and _recipe(name) is None]:
        sources = ", ".join(str(mapping.source) for mapping in mappings)
        received = f"none for {len(missing)}, e.g. {missing[0]}"
        raise ValueError(f"{sources}: expected a tensor for each of ours; got {received}")
    return mappings


def _recipe(name: str) -> str | None:
    return next((recipe for pattern, recipe in NEW.items() if re.fullmatch(pattern, name)), None)


def _target(name: str, shape: tuple[int, ...], dtype: torch.dtype, rows: tuple[TensorRows, ...] | None) -> Target:
    """Checks that the rows form exactly this tensor, or (embeddings) all of it except rows of added tokens. Raises
    ValueError: the rows have another shape or number than the tensor, or an unsupported type."""
    if rows is None:
        return Target(name, shape, dtype, recipe=_recipe(name))
    first = rows[0]
    if name in (EMBEDDINGS, HEAD) and first.whole and first.shape[1:] == shape[1:] and first.shape[0] < shape[0]:
        return Target(name, shape, dtype, rows, extra_rows=shape[0] - first.shape[0])
    expected = shape
    if len(rows) > 1:  # a stack: each element of the first axis is an equal part of the rows
        expected = (shape[0] * shape[1] // len(rows), *shape[2:])
    for part in rows:
        if part.info.dtype not in STORED:
            kinds = ", ".join(STORED)
            raise ValueError(f"{part.source}: expected {part.name} stored as one of {kinds}; got {part.info.dtype}")
        if part.shape != expected:
            received = f"{list(part.shape)}" + ("" if part.whole else f", rows {part.start} to {part.stop}")
            wanted = f"{part.name} of shape {list(expected)} (config.json)"
            raise ValueError(f"{part.source}: expected {wanted}; got {received}")
    return Target(name, shape, dtype, rows)


def record(plan: Plan) -> dict[str, Any]:
    """The sources with revisions; omitted tensors by source and reason; new tensors by recipe; without local paths."""
    sources = {
        role: {"name": source.published_name, "revision": source.revision}
        for role, source in plan.request.sources.items()
    }
    left: dict[str, dict[str, list[str]]] = {}
    for source, name, reason in plan.left_out:
        left.setdefault(source.published_name, {}).setdefault(reason, []).append(name)
    new: dict[str, list[str]] = {}
    for name, target in plan.targets.items():
        if target.recipe is not None:
            new.setdefault(target.recipe, []).append(name)
        elif target.extra_rows:
            new.setdefault(f"{target.extra_rows} rows for added tokens: the mean of the others", []).append(name)
    return {"sources": sources, "seed": plan.request.seed, "new": new, "left_out": left}


def part_of(name: str) -> str:
    """The part of the model that holds a tensor: a child of the model or of its vision tower."""
    steps = name.split(".")
    return ".".join(steps[: 3 if steps[1] == "vision_tower" else 2])


def report(plan: Plan) -> str:
    """A text with the sources; tensors, parameters and bytes of each part; new tensors; omitted tensors; files."""
    lines = ["sources"]
    lines += [f"  {role:<20}{source}" for role, source in plan.request.sources.items()]
    lines += ["", f"{'parts':<22}{'loaded':>8}{'new':>6}{'parameters':>17}{'bytes':>17}"]
    parts: dict[str, list[Target]] = {}
    for name, target in plan.targets.items():
        parts.setdefault(part_of(name).removesuffix(".weight").rpartition(".")[2].replace("_", " "), []).append(target)
    for part, targets in {**parts, "total": [*plan.targets.values()]}.items():
        new = sum(not target.rows for target in targets)
        parameters, size = sum(target.numel for target in targets), sum(target.nbytes for target in targets)
        lines.append(f"  {part:<20}{len(targets) - new:>8}{new:>6}{parameters:>17,}{size:>17,}")
    made = record(plan)
    lines += ["", "new"]
    lines += [f"  {len(names):>5} tensors: {recipe}" for recipe, names in made["new"].items()] or ["  nothing"]
    lines += ["", "left out"]
    left_out = [(source, *each) for source, reasons in made["left_out"].items() for each in reasons.items()]
    lines += [f"  {len(names):>5} tensors of {source}: {why}" for source, why, names in left_out] or ["  nothing"]
    largest = max(sum(plan.targets[name].nbytes for name in names) for names in plan.shards.values())
    dtype = str(plan.config.dtype).removeprefix("torch.")
    lines += ["", f"{len(plan.shards)} file(s) of at most {largest:,} bytes, {dtype}"]
    return "\n".join(lines)
