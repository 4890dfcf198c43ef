"""The trained scorer of a reader: one file, and how it is trained. The published model's weights stay as they are.

Notation: N image tokens of a prompt as the plain model has them, D width of the language model.
"""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers.optimization import get_cosine_schedule_with_warmup

from ..files import fresh_file
from ..modeling.checks import boxes_per_slot
from ..modeling.configuration_arr_coc import ArrCocFetcherConfig
from ..modeling.modeling_arr_coc import relevance_loss
from ..modeling.scorers import Scorer
from .encoding import AttachedEncoding
from .scoring import TrainedScorer, relevance_of_boxes, token_scores

if TYPE_CHECKING:
    from .reader import AttachedReader

POSITIVE_WEIGHT = 4.0
"""How much more a token under a box weighs in the loss than another: the default of our own models."""


def save_scorer(scorer: TrainedScorer, path: str | Path, model_type: str) -> None:
    """Writes a scorer to one safetensors file, with its configuration and the family that it was trained on."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in scorer.state_dict().items()}
    about = {"model_type": model_type, "width": str(scorer.width), "config": json.dumps(scorer.config.to_dict())}
    with fresh_file(Path(path)) as beside:
        save_file(weights, beside, metadata=about)


def load_scorer(path: str | Path, model_type: str, width: int) -> TrainedScorer:
    """Reads what `save_scorer` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: another file, or the scorer of another family or of tokens of another width.
    """
    try:
        with safe_open(path, framework="pt") as opened:
            about = opened.metadata() or {}
            weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (it is no mapping)
    except SafetensorError as error:
        raise ValueError(f"{path}: expected a scorer in a safetensors file; got {error}") from error
    if "config" not in about:
        raise ValueError(f"{path}: expected a scorer that save_adapter wrote; got {len(weights)} other tensors")
    expected, received = (model_type, str(width)), (about["model_type"], about["width"])
    if expected != received:
        raise ValueError(
            f"{path}: expected a scorer for {model_type} with tokens {width} wide; got one for {received[0]}, "
            f"{received[1]} wide"
        )
    config = ArrCocFetcherConfig.from_dict(json.loads(about["config"]))
    scorer = TrainedScorer(config, feature_size=width, text_size=width)
    scorer.load_state_dict(weights)
    return scorer.eval()


def train_scorer(
    reader: "AttachedReader",
    examples: Sequence[tuple[Any, str, Sequence[Any] | None]],
    *,
    steps: int,
    batch_size: int = 4,
    learning_rate: float = 1e-3,
    config: ArrCocFetcherConfig | None = None,
    seed: int = 0,
    on_step: Callable[[int, float], Any] | None = None,
) -> list[float]:
    """Trains the reader's scorer, a new one where it has none; the model itself learns nothing.

    Args:
        reader: attached to the model.
        examples: (image or encoding, question, boxes). Relevant are the tokens under the boxes, px of the image; where
            boxes are None, those that the question attends to when the model reads all tokens (its own attention is
            the teacher).
        steps: of AdamW, with a tenth of warmup and a cosine decay.
        batch_size: examples a step.
        learning_rate: the highest.
        config: of a new scorer: `hidden_size`, `num_heads`, `num_layers` and what else the realizer has.
        seed: of weights and of the order.
        on_step: is told of each step's number and loss.

    Returns:
        The loss of each step.

    Raises:
        ValueError: no examples, or no steps.
    """
    if not examples or steps < 1:
        raise ValueError(f"examples, steps: expected at least one of each; got {len(examples)} and {steps}")
    if reader.scorer is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            own = TrainedScorer(config or ArrCocFetcherConfig(), feature_size=reader.width, text_size=reader.width)
            reader.scorer = own.to(reader.model.device)
    scorer, order = reader.scorer.train(), random.Random(seed)
    optimizer = torch.optim.AdamW(scorer.parameters(), learning_rate)
    schedule = get_cosine_schedule_with_warmup(optimizer, max(1, steps // 10), steps)
    losses = []
    try:
        for step in range(steps):
            batch = [examples[order.randrange(len(examples))] for _ in range(batch_size)]
            loss = torch.stack([example_loss(reader, scorer, *example) for example in batch]).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(scorer.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            if on_step is not None:
                on_step(step, losses[-1])
    finally:
        scorer.eval()
    return losses


def example_loss(
    reader: "AttachedReader", scorer: Scorer, image: Any, question: str, boxes: Sequence[Any] | None
) -> Tensor:
    """How far a scorer's map is from boxes (binary cross-entropy), or from the model's own attention (divergence)."""
    encoding = image if isinstance(image, AttachedEncoding) else reader.encode_image(image, prefix=False)
    (prompt,) = encoding.prompts
    scores = token_scores(scorer, prompt, reader.query(question))
    places = prompt.is_place.to(scores.device)
    if boxes is None:
        return _divergence(scores, reader.runner.attention(encoding, prompt, question, to_all=True), places)
    target = relevance_of_boxes(prompt, boxes_per_slot(boxes)).to(scores.device)
    return relevance_loss(scores[None, None], target[None], places[None], POSITIVE_WEIGHT)


def _divergence(scores: Tensor, attention: Tensor, places: Tensor) -> Tensor:
    """Of softmax(scores) from attention, both [N] over the places."""
    target = attention[places] / attention[places].sum().clamp(min=1e-12)
    return F.kl_div(scores[places].log_softmax(-1), target, reduction="sum")
