"""transformers' own Trainer with batches of QuestionCollator, and the losses that it and others ask for."""

from pathlib import Path

import pytest
import torch
from helpers import CARD, PAGE, QUESTION, prompt, tiny_model
from trainers import standard_trainer

pytestmark = pytest.mark.versions


def test_evaluate_gives_the_loss(tmp_path: Path) -> None:
    """`relevance_labels` looked like a label to Trainer, which then found the batch without its labels."""
    model = tiny_model()
    trainer = standard_trainer(model, tmp_path)
    measured = trainer.evaluate()
    with torch.no_grad():
        batch = trainer.data_collator(list(trainer.eval_dataset))
        expected = model(**batch).loss
    assert measured["eval_loss"] == pytest.approx(expected.item(), rel=1e-4)
    assert trainer.label_names == ["labels"]


def test_the_best_model_is_loaded_at_the_end(tmp_path: Path) -> None:
    """It died for want of eval_loss."""
    model = tiny_model()
    settings = {"max_steps": 3, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    trainer = standard_trainer(model, tmp_path, learning_rate=0.5, load_best_model_at_end=True, **settings)
    trainer.train()
    losses = {line["step"]: line["eval_loss"] for line in trainer.state.log_history if "eval_loss" in line}
    assert set(losses) == {1, 2, 3}
    best = min(losses.values())
    assert trainer.state.best_metric == pytest.approx(best)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(best, rel=1e-3)


# ---- losses
@torch.no_grad()
def test_the_loss_of_a_batch_counts_by_its_share_of_the_tokens() -> None:
    model = tiny_model()
    inputs = prompt(model, (PAGE, QUESTION), (CARD, "Who?"))
    labels = inputs["input_ids"].masked_fill(~inputs["query_mask"], -100)
    tokens = int((labels[:, 1:] != -100).sum())
    whole = model(**inputs, labels=labels).loss
    assert torch.allclose(model(**inputs, labels=labels, num_items_in_batch=2 * tokens).loss, whole / 2)
    assert torch.allclose(model(**inputs, labels=labels, num_items_in_batch=torch.tensor(tokens)).loss, whole)
