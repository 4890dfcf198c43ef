"""Evidence for an answer about one image, for figures.

For a document or an image in tiles, it is about the view with the most fetched patches.

This code is separate from `generate`: it runs scorers again, in the same context.

Notation: G side of the fine grid, N = G*G patches, T textures, K fetched tokens. Positions are (y, x).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from ..evaluation.answers import encode
from ..families.map_scorers import EXPERTS, ExpertScorer, MapScorer, fixed_maps
from ..families.relevance_maps import RELEVANCE_MAPS
from ..modeling.answers import Answer, answer_uncertainties
from ..modeling.fetcher import FetchChoices, FetchResult
from ..modeling.generation import AnswerGenerator, QuestionBatch, generation_setting
from ..modeling.image_encoding import ImageEncoding
from ..modeling.image_loading import Encoded, load_source
from ..modeling.image_processing_arr_coc import Box
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.scorers import FetchContext, Scorer
from ..modeling.views import JointFetch
from ..modeling.vision_tower import TEXTURE_SETS, textures

TEXTURES_SHOWN = ("luminance", "saturation", "saliency", "edge_magnitude", "local_entropy", "eccentricity")
"""Basic textures that are neither colour channels of the image nor parts of another texture."""


@dataclass(frozen=True)
class PatchMap:
    """A number for each patch."""

    name: str
    values: np.ndarray  # float [G, G]
    weight: float | None = None  # its weight among several maps, or None
    source: str = ""  # its origin, if it is not the strategy that fetched


@dataclass(frozen=True)
class Part:
    """The view with the most fetched patches, for a question about several views."""

    box: tuple[int, int, int, int]  # its x0, y0, x1, y1, px of its source
    page: int | None  # page or time of the source, see `Origin`
    second: float | None
    views: int  # the number of views
    share: float  # its share of all fetched patches, 0..1
    answer: str  # the answer from all views

    def __str__(self) -> str:
        x0, y0, x1, y1 = self.box
        where = "" if self.page is None else f" of page {self.page}"
        where += "" if self.second is None else f" at {self.second:g} s"
        return f"x {x0}-{x1}, y {y0}-{y1} px{where}"


@dataclass(frozen=True)
class SeenImage:
    """An image without tiles, encoded once for all of its questions."""

    image: Image.Image
    encoding: ImageEncoding
    textures: Tensor  # [1, T, G, G], the set "basic", independent of the checkpoint's scorers
    part: Part | None = None  # the view of the sources that it shows; None: all of the source

    @property
    def patch_mask(self) -> np.ndarray:
        """bool [G, G]: False on padding patches."""
        return self.encoding.patch_mask[0].cpu().numpy().reshape(self.encoding.side, -1)


@dataclass(frozen=True)
class AnswerEvidence:
    """The evidence for one answer."""

    question: str
    answer: Answer  # with the fetched patches and, with several passes, their history
    uncertainty: float  # uncertainty of the answer, 0..1, see `answer_uncertainties`
    untrained: bool = False  # whether the scorer's weights are untrained
    textures: tuple[PatchMap, ...] = ()
    # the maps that the scorer combines, with their weights; the three relevance maps for a scorer without such maps
    inner: tuple[PatchMap, ...] = ()
    inner_note: str = field(default="")  # a sentence about these maps

    @property
    def fetch(self) -> FetchResult:
        """The fetched patches of all passes."""
        return self.answer.fetch

    @property
    def relevance(self) -> np.ndarray:
        """float [G, G] in 0..1: the map by which patches were chosen."""
        return as_grid(self.fetch.relevance[0])


def as_grid(values: Tensor) -> np.ndarray:
    """[N] -> float [G, G]."""
    side = round(len(values) ** 0.5)
    return values.detach().float().cpu().numpy().reshape(side, side)


@torch.no_grad()
def see(model: ArrCocForConditionalGeneration, image: Any) -> SeenImage:
    """Encodes an image (in any form that `load_image` takes) without tiles, and computes its basic textures. Raises
    ValueError: the image cannot be read, or is a document."""
    processor, side = model.processor.image_processor, model.config.vision_config.image_size
    loaded = load_source(image, max_image_pixels=processor.max_image_pixels)
    if isinstance(loaded, Encoded):
        raise ValueError(f"{loaded.name}: expected one image; got a document ({loaded.kind})")
    encoding = encode(model, [loaded], side)
    pixels = processor([loaded], size={"height": side, "width": side}, return_tensors="pt")["pixel_values"]
    basic = textures(pixels.to(model.device), encoding.side, "basic", encoding.patch_mask)
    return SeenImage(loaded, encoding, basic)


@torch.no_grad()
def see_part(
    model: ArrCocForConditionalGeneration, encoding: ImageEncoding, question: str, **choices: Any
) -> SeenImage:
    """The view with a question's most fetched patches, as a separate image.

    Args:
        encoding: of one document or of an image in tiles, from `model.encode_image`.
        **choices: how patches are fetched, see `FetchChoices`; views do not support several passes.

    Raises:
        ValueError: `generate` refuses the choices.
    """
    assert encoding.sources is not None, "an encoding of views holds its sources"
    (answer,) = model.generate(encoding, [question], **choices, return_fetch=True, do_sample=False, num_beams=1)
    fetch: JointFetch = answer.fetch
    counts = fetch.view[fetch.used].bincount(minlength=len(fetch.seen.views.slots))
    number = int(counts.argmax())
    source = encoding.sources[int(fetch.seen.views.slots[number])]
    x0, y0, x1, y1 = (round(edge) for edge in fetch.seen.views.windows[number].tolist())
    box = (max(0, x0), max(0, y0), min(source.width, x1), min(source.height, y1))
    share = counts[number].item() / max(1, int(counts.sum()))
    part = Part(box, source.page, source.second, len(counts), share, answer.text)
    return replace(see(model, source.load().crop(box)), part=part)


@torch.no_grad()
def gather_evidence(
    model: ArrCocForConditionalGeneration,
    seen: SeenImage,
    question: str,
    choices: FetchChoices,
    *,
    boxes: Sequence[Box] | None = None,
    texture_names: Sequence[str] = TEXTURES_SHOWN,
) -> AnswerEvidence:
    """Answers a question greedily and gathers the evidence for the answer.

    Args:
        seen: the image, from `see`.
        boxes: for strategy "oracle", px of the image.
        texture_names: names of `TEXTURE_SETS["basic"]`.

    Raises:
        ValueError: `generate` refuses the choices, or a texture is not a basic one.
    """
    basic = dict(zip(TEXTURE_SETS["basic"], seen.textures[0], strict=True))
    for name in texture_names:
        if name not in basic:
            raise ValueError(f"textures: expected names among {', '.join(basic)}; got {name!r}")
    shown = tuple(PatchMap(name, as_grid(basic[name].flatten())) for name in texture_names)
    answer, uncertainty = _answer(model, seen, question, choices, boxes)
    strategy = answer.fetch.strategy
    scorer = model.model.fetcher.scorer(strategy)
    # The scorers' inputs, without external relevance and attention.
    resolved = model.model.fetcher.resolve(replace(choices, num_passes=1))
    batch = QuestionBatch(seen.encoding, [[0]], [question], resolved)
    context = AnswerGenerator(model, model.processor).select_slots(batch)[0].context
    # The larger set of the checkpoint's textures and the basic ones; the smaller one is its beginning.
    if context.textures.shape[1] <= seen.textures.shape[1]:
        context = replace(context, textures=seen.textures.to(context.textures))
    inner, note = inner_maps(model, scorer, strategy, context)
    return AnswerEvidence(question, answer, uncertainty, is_untrained(scorer), shown, inner, note)


def _answer(
    model: ArrCocForConditionalGeneration,
    seen: SeenImage,
    question: str,
    choices: FetchChoices,
    boxes: Sequence[Box] | None,
) -> tuple[Answer, float]:
    """The answer and its uncertainty, after the last pass."""
    oracle = (choices.strategy or model.config.fetcher_config.strategy) == "oracle"
    given = [list(boxes)] if oracle and boxes is not None else None
    greedy: dict[str, Any] = {"return_dict_in_generate": True, "do_sample": False, "num_beams": 1}
    answer = model.generate(seen.encoding, question, choices=choices, boxes=given, return_fetch=True, **greedy)
    answer = answer[0] if isinstance(answer, list) else answer
    if answer.passes:
        return answer, answer.passes[-1].uncertainty
    output = answer.output
    start = output.sequences.shape[1] - len(output.logits)
    end, pad = generation_setting(model, {}, "eos_token_id", []), generation_setting(model, {}, "pad_token_id", -1)
    (uncertainty,) = answer_uncertainties(output, start, end, pad)
    return answer, uncertainty


# ---- maps of a scorer -----------------------------------------------------------------------------------------------


def inner_maps(
    model: ArrCocForConditionalGeneration, scorer: Scorer, strategy: str, context: FetchContext
) -> tuple[tuple[PatchMap, ...], str]:
    """The maps that a scorer adds, with their weights; the three relevance maps for a scorer without maps.

    Two of the three need no weights. The third is query similarity in the space of `clip_query`, if the checkpoint has
    this scorer trained. Untrained maps are omitted.

    Args:
        scorer, strategy: the scorer that chose the patches, and its name.
        context: has the textures of the set "basic" or more.

    Returns:
        The maps, and a sentence about them.
    """
    if isinstance(scorer, MapScorer):
        maps = scorer.maps(context)
        weights = scorer.weights(maps, context)[0].tolist()
        named = zip(scorer.map_names, maps[0], weights, strict=True)
        note = f"{strategy} adds these maps, each times its weight for this question"
        return tuple(PatchMap(name, as_grid(values), weight) for name, values, weight in named), note
    if isinstance(scorer, ExpertScorer):
        gates = scorer.gates(context)[0]
        shares = gates[context.patch_mask[0].to(gates.device)].mean(0).tolist()
        named = zip(EXPERTS, gates.T, shares, strict=True)
        note = "the weight of each expert on a patch, and on average"
        return tuple(PatchMap(name, as_grid(values), share) for name, values, share in named), note
    fixed = zip(RELEVANCE_MAPS, fixed_maps(context), strict=False)  # the third needs weights
    shown = [PatchMap(name, as_grid(values[0]), source="a fixed function") for name, values in fixed]
    held: Any = dict(model.model.fetcher.scorers.items())
    clip = held.get("clip_query")
    if clip is None or is_untrained(clip):
        why = "the checkpoint holds no trained space for the third"
        return tuple(shown), f"{strategy} weighs no maps; for comparison two of the three relevance maps ({why})"
    coupling = clip(context).sigmoid()[0]
    shown.append(PatchMap(RELEVANCE_MAPS[-1], as_grid(coupling), source="as clip_query sees it"))
    return tuple(shown), f"{strategy} weighs no maps; for comparison the three relevance maps"


def is_untrained(scorer: Scorer) -> bool:
    """Whether a scorer's weights are untrained: its normalisations, which every training changes, are the identity."""
    norms = [part for part in scorer.modules() if isinstance(part, nn.LayerNorm)]
    begun = [bool((norm.weight == 1).all()) and not bool(norm.bias.any()) for norm in norms]
    return scorer.trained and bool(norms) and all(begun)


# ---- numbers ------------------------------------------------------------------------------------------------------


def evidence_json(evidence: AnswerEvidence) -> dict[str, Any]:
    """The numbers of a question's figures."""
    fetch = evidence.fetch
    return {
        "question": evidence.question,
        "answer": evidence.answer.text,
        "confidence": evidence.answer.probability,
        "uncertainty": evidence.uncertainty,
        "strategy": fetch.strategy,
        "untrained": evidence.untrained,
        "fell_back": {part: count for part, count in fetch.fallbacks.items() if count},
        "relevance": _range(evidence.relevance),
        **fetched_json(fetch),
        "maps": [_map_json(each) for each in evidence.inner],
        "maps_are": evidence.inner_note,
        "textures": [_map_json(each) for each in evidence.textures],
        "passes": [
            {
                "answer": each.text,
                "confidence": each.probability,
                "uncertainty": each.uncertainty,
                "exploration": each.share,
                **fetched_json(each.fetch),
            }
            for each in evidence.answer.passes
        ],
    }


def fetched_json(fetch: FetchResult) -> dict[str, Any]:
    """Allocator and budget, tokens by their number of patches, and their regions: y0, x0, y1, x1 in patches."""
    return {
        "allocator": fetch.allocator,
        "budget": int(fetch.counts.sum()),
        "tokens_of_patches": tokens_by_size(fetch),
        "regions": fetch.regions()[fetch.used].tolist(),
    }


def tokens_by_size(fetch: FetchResult) -> dict[int, int]:
    """{patches per token: number of fetched tokens of this size}, without unused sizes."""
    regions = fetch.regions()[fetch.used]
    sizes = ((regions[:, 2] - regions[:, 0]) * (regions[:, 3] - regions[:, 1])).tolist()
    return {size: sizes.count(size) for size in sorted(set(sizes))}


def _map_json(each: PatchMap) -> dict[str, Any]:
    return {"name": each.name, "weight": each.weight, "source": each.source or None, **_range(each.values)}


def _range(values: np.ndarray) -> dict[str, float]:
    return {"least": float(values.min()), "mean": float(values.mean()), "greatest": float(values.max())}
