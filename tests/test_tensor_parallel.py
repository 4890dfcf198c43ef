"""Two processes that share one checkpoint's tensors, as `tp_plan="auto"` splits them, over gloo."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import tiny_checkpoint
from test_modeling import PAGE, QUESTION, prompt

from arr_coc import ArrCocForConditionalGeneration

SCRIPT = Path(__file__).parent / "logits_in_parallel.py"
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_split_tensors_give_the_same_logits(tied: bool, tmp_path: Path) -> None:
    """A tied checkpoint was refused on loading: no plan said how lm_head is split."""
    folder = tiny_checkpoint(tmp_path / "model", text={**HEADS, "tie_word_embeddings": tied})
    model = ArrCocForConditionalGeneration.from_pretrained(folder).eval()
    batch = dict(prompt(model, (PAGE, QUESTION)))
    torch.save(batch, tmp_path / "batch.pt")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    files = [str(folder), str(tmp_path / "batch.pt"), str(tmp_path / "out.pt")]
    done = subprocess.run([*launch, str(SCRIPT), *files], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    measured = torch.load(tmp_path / "out.pt")
    assert {name.split(".")[-2] for name in measured["split"]} >= {"q_proj", "down_proj", "embed_tokens"}
    with torch.no_grad():
        expected = model(**batch).logits
    scale = float(expected.abs().max())
    assert torch.allclose(measured["logits"], expected, atol=1e-6 * scale), (measured["logits"] - expected).abs().max()
