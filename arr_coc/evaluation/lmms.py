"""An adapter for lmms-eval (https://github.com/EvolvingLMMs-Lab/lmms-eval), which runs its tasks on a model.

If both packages are installed, lmms-eval finds it by the entry point group "lmms_eval.models":

    lmms-eval --model arr_coc --model_args pretrained=org/arr-coc,budget=fast --tasks textvqa_val --batch_size 16

If `pretrained` is a published model, running back is attached to it (see `arr_coc.attach`); `budget` can be a share:

    lmms-eval --model arr_coc --model_args pretrained=Qwen/Qwen3-VL-2B-Instruct,budget=0.25 --tasks docvqa_val
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from lmms_eval.api.instance import Instance
from lmms_eval.api.model import lmms
from lmms_eval.models.registry_v2 import ModelManifest
from tqdm import tqdm

from ..attached.reader import AttachedReader, load_model_or_reader
from .prediction_loop import new_tokens


class ArrCoc(lmms):
    """Answers greedily, with one or several images per question; refuses a question without an image.

    Args:
        pretrained: a folder or a Hub name (org/name) of an ARR-COC checkpoint or a published model.
        device: None: CUDA if available, else the CPU.
        batch_size: questions at a time.
        strategy, budget: see `generate`; the checkpoint's by default.
        allocator: for a checkpoint.
        way, pool: for a published model, see `AttachedReader.encode_image`.
    """

    is_simple = True

    def __init__(
        self,
        pretrained: str,
        device: str | None = None,
        batch_size: int | str = 1,
        strategy: str | None = None,
        budget: float | int | str | None = None,
        **others: Any,
    ) -> None:
        super().__init__()
        self.asked: Any = load_model_or_reader(pretrained, device)
        attached = isinstance(self.asked, AttachedReader)
        own = ("way", "pool") if attached else ("allocator",)
        if unknown := others.keys() - own:
            known = ", ".join(("pretrained", "device", "batch_size", "strategy", "budget", *own))
            raise ValueError(f"model_args: expected {known}; got {', '.join(sorted(unknown))}")
        self.model: Any = self.asked.model if attached else self.asked
        self.batch_size = int(batch_size)
        if self.batch_size < 1:
            raise ValueError(f"batch_size: expected at least 1; got {batch_size}")
        named = {"strategy": strategy, "budget": budget, **others}
        self.choices = {name: value for name, value in named.items() if value is not None}

    def generate_until(self, requests: Sequence[Instance]) -> list[str]:
        """The answers in the order of the requests, each cut before its first `until` string."""
        answers = []
        with tqdm(total=len(requests), unit="answer", disable=True if self.rank else None) as bar:
            for _, alike in groupby(requests, key=lambda request: request.args[1]):  # of the same settings
                whole = list(alike)
                for start in range(0, len(whole), self.batch_size):
                    answers += self._answer(whole[start : start + self.batch_size])
                    bar.update(min(self.batch_size, len(whole) - start))
        return answers

    def _answer(self, batch: Sequence[Instance]) -> list[str]:
        images, questions = [], []
        for question, _, visuals, doc, task, split in (request.args for request in batch):
            shown = list(visuals(self.task_dict[task][split][doc]) or ())
            if not shown:
                raise ValueError(f"task {task}: expected an image for every question; got none for {question!r}")
            images.append(shown)
            questions.append(question.replace("<image>", "").strip())
        wanted = batch[0].args[1]
        length = wanted.get("max_new_tokens") or new_tokens(self.model)
        said = self.asked.generate(images, questions, max_new_tokens=length, do_sample=False, **self.choices)
        ends = wanted.get("until") or []
        for end in filter(None, [ends] if isinstance(ends, str) else ends):
            said = [answer.split(end)[0] for answer in said]
        return [answer.strip() for answer in said]

    def loglikelihood(self, requests: Sequence[Instance]) -> list[tuple[float, bool]]:
        """Unsupported: use tasks that generate."""
        raise ValueError("arr_coc: expected tasks of output_type generate_until; got loglikelihood")

    def generate_until_multi_round(self, requests: Sequence[Instance]) -> list[str]:
        """Unsupported: a prompt is one question."""
        raise ValueError("arr_coc: expected tasks of output_type generate_until; got generate_until_multi_round")


def manifest() -> ModelManifest:
    """The manifest that the entry point returns to lmms-eval."""
    return ModelManifest(model_id="arr_coc", simple_class_path=f"{__name__}.{ArrCoc.__name__}")
