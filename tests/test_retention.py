"""Retention: what an adapter learns elsewhere does not change what the scorers say of retained records."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from trainers import CPU, PAGES, loaded, tiered_checkpoint, trainer_of

from arr_coc.adapters import adapt
from arr_coc.data.collator import UNKNOWN, QuestionCollator
from arr_coc.data.formats import open_records, open_source
from arr_coc.training.losses import retention_loss
from arr_coc.training.phases import AllocatorPhase, make_trainer

OTHER = {**PAGES, "seed": 77}
MIXED = {"format": "mixed", "sources": [PAGES, OTHER], "retained": [1]}
PHASE = AllocatorPhase(
    data=MIXED,
    trained=("scorer",),
    steps=12,
    warmup=1,
    batch_size=4,
    learning_rate=2e-2,
    strategies={"realizer": 1.0},
    losses={"answer": 0.0},
    weight_decay=0.0,
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only."""
    return tiered_checkpoint(tmp_path_factory.mktemp("retention"))


def moved(checkpoint: Path, folder: Path, weight: float) -> float:
    """How far the realizer's logits of retained records are, after training, from those without the adapter."""
    model, processor = loaded(checkpoint)
    phase = replace(PHASE, losses={**PHASE.losses, "retention": weight})
    trainer = make_trainer(adapt(model, ("scorer",), r=4), processor, phase, folder, device=CPU, root=folder)
    trainer.train()
    adapted = trainer.model.eval()
    collate = QuestionCollator(processor, model.config, padding_side="left")
    batch = collate(list(open_records(OTHER, folder=folder)))
    with torch.no_grad():
        after = trainer._run(adapted, batch, "realizer", None).scores["realizer"]
        with adapted.disable_adapter():
            before = trainer._run(adapted, batch, "realizer", None).scores["realizer"]
    return retention_loss(after, before, batch["patch_mask"][batch["image_index"]]).mean().item()


def test_retained_records_are_judged_as_before(checkpoint: Path, tmp_path: Path) -> None:
    free, held = moved(checkpoint, tmp_path / "free", 0.0), moved(checkpoint, tmp_path / "held", 5.0)
    assert held < free / 3, (held, free)


@pytest.mark.parametrize("retained", [[2], [-1], ["1"], 1, [True]])
def test_sources_that_there_are_not_are_not_retained(retained: Any) -> None:
    with pytest.raises(ValueError, match="retained: expected a list of numbers of sources, 0 to 1; got"):
        open_records({**MIXED, "retained": retained})


def test_a_digest_knows_sources_without_files_beside_those_with_some(tmp_path: Path) -> None:
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    line = {"image": "a.png", "question": "Who?", "answers": ["x"]}
    (tmp_path / "data.jsonl").write_text(json.dumps(line))
    filed = {"format": "jsonl", "path": str(tmp_path / "data.jsonl")}
    sources = [open_source({"format": "mixed", "sources": [filed, pages]}) for pages in (PAGES, OTHER, PAGES)]
    digests = [source.digest(source.read()) for source in sources]
    assert digests[0] == digests[2] != digests[1]


def test_boxes_of_retained_records_teach_nothing(checkpoint: Path, tmp_path: Path) -> None:
    model, processor = loaded(checkpoint)
    records = list(open_records(MIXED, folder=tmp_path))[:4]
    batch = QuestionCollator(processor, model.config)(records)
    assert batch["retained"].tolist() == [False, True, False, True]
    assert (batch["relevance_targets"][1::2] == UNKNOWN).all() and (batch["relevance_targets"][::2] >= 0).all()
    assert "retained" not in QuestionCollator(processor, model.config)(records[::2])


def test_retention_counts_real_patches_alone() -> None:
    scores, mask = torch.tensor([[1.0, 5.0, 3.0]]), torch.tensor([[True, False, True]])
    assert retention_loss(scores, torch.zeros(1, 3), mask).tolist() == [5.0]


def test_a_whole_model_has_nothing_to_be_held_to(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="retention: expected an adapter"):
        trainer_of(checkpoint, tmp_path, PHASE, losses={"retention": 1.0})
