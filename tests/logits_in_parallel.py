"""Under torchrun: loads a checkpoint (first argument) with its tensors split among the processes, writes the logits of
a batch (second argument) to a file (third)."""

import sys

import torch
from helpers import leave

from arr_coc import ArrCocForConditionalGeneration

if __name__ == "__main__":
    folder, batch, out = sys.argv[1:]
    model = ArrCocForConditionalGeneration.from_pretrained(folder, tp_plan="auto").eval()
    with torch.no_grad():
        logits = model(**torch.load(batch)).logits
    split = {name for name, weight in model.named_parameters() if type(weight).__name__ == "DTensor"}
    if torch.distributed.get_rank() == 0:
        torch.save({"logits": logits, "split": sorted(split)}, out)
    torch.distributed.barrier()
    leave()
