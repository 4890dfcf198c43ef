"""The trained scorer of a reader: its file and its losses. The published model's weights do not change.

Notation: N image tokens of a prompt as the plain model has them, D width of the language model.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..files import fresh_file
from ..modeling.configuration_arr_coc import ArrCocFetcherConfig
from ..modeling.image_processing_arr_coc import Box
from ..modeling.modeling_arr_coc import relevance_loss
from ..modeling.processing_arr_coc import Turn
from ..modeling.scorers import Scorer
from .encoding import AttachedEncoding
from .scoring import TrainedScorer, relevance_of_boxes, token_scores

if TYPE_CHECKING:
    from .reader import AttachedReader

POSITIVE_WEIGHT = 4.0
"""Weight of a token under a box in the loss, relative to another token: the default of our own models."""


def save_scorer(scorer: TrainedScorer, path: str | Path, model_type: str, base: str) -> None:
    """Writes a scorer to a safetensors file, with its configuration, its family and its model."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in scorer.state_dict().items()}
    about = {"model_type": model_type, "width": str(scorer.width), "config": json.dumps(scorer.config.to_dict())}
    about["base"] = base
    with fresh_file(Path(path)) as beside:
        save_file(weights, beside, metadata=about)


def load_scorer(path: str | Path, model_type: str, width: int) -> TrainedScorer:
    """Reads a scorer that `save_scorer` wrote.

    Raises:
        FileNotFoundError: no such file.
        ValueError: another kind of file, or a scorer of another family or another width.
    """
    about, weights = _read(path)
    expected, received = (model_type, str(width)), (about["model_type"], about["width"])
    if expected != received:
        wanted = f"a scorer for {model_type} with tokens {width} wide"
        raise ValueError(f"{path}: expected {wanted}; got one for {received[0]}, {received[1]} wide")
    config = ArrCocFetcherConfig.from_dict(json.loads(about["config"]))
    scorer = TrainedScorer(config, feature_size=width, text_size=width)
    scorer.load_state_dict(weights)
    return scorer.eval()


def base_of(path: Path) -> str:
    """The folder or Hub name of the model that a scorer was trained on. It raises the errors of `load_scorer`."""
    return _read(path)[0].get("base", "")


def _read(path: str | Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as opened:
            about = opened.metadata() or {}
            weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (it is no mapping)
    except SafetensorError as error:
        raise ValueError(f"{path}: expected a scorer in a safetensors file; got {error}") from error
    if "config" not in about:
        raise ValueError(f"{path}: expected a scorer that save_adapter wrote; got {len(weights)} other tensors")
    return about, weights


def new_scorer(config: ArrCocFetcherConfig, width: int, seed: int) -> TrainedScorer:
    """A scorer with random weights, for tokens `width` wide."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return TrainedScorer(config, feature_size=width, text_size=width)


def scorer_loss(
    reader: "AttachedReader",
    scorer: Scorer,
    encoding: AttachedEncoding,
    question: str,
    boxes: Sequence[Sequence[Box]] | None,
    history: Sequence[Turn] = (),
) -> Tensor:
    """Loss of a scorer's map of one prompt: binary cross-entropy with boxes, a list for each image; or, with None,
    divergence from the model's own attention to all tokens."""
    (prompt,) = encoding.prompts
    scores = token_scores(scorer, prompt, reader.query(question))
    places = prompt.is_place.to(scores.device)
    if boxes is None:  # divergence of softmax(scores) from attention over the places
        paid = reader.runner.attention(encoding, prompt, question, history, to_all=True)[places]
        target = paid / paid.sum().clamp(min=1e-12)
        return F.kl_div(scores[places].log_softmax(-1), target, reduction="sum")
    target = relevance_of_boxes(prompt, boxes).to(scores.device)
    return relevance_loss(scores[None, None], target[None], places[None], POSITIVE_WEIGHT)
