"""Stage 2: the whole model learns to find, fetch and answer, on rendered documents.

A batch is some pages with several questions each, encoded once. Its strategy and budget are drawn per batch, oracle
boxes mostly at first (so that reading the fetched patches is learnt at once), the trained scorers more and more; so one
set of weights serves every strategy. The scorers learn from the boxes of the answer and its label. Two things make
reading what was fetched quick to learn: oracle batches also transcribe, in a second turn, all lines that they fetched
(many more characters than an answer has); and after the bridge a fetched token names its characters through the
language model's own vocabulary, so that copying a character is a matter of looking at the right token.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import IterableDataset
from transformers import PreTrainedTokenizerBase

from arr_coc.data import CHARSET, Entry, Split, ask, box_targets, glyph_targets, render_document
from arr_coc.modeling.configuration_arr_coc import ArrCocConfig, resolve_budget
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.processing_arr_coc import CHAT_TEMPLATE, find_query_tokens, query_markers
from arr_coc.modeling.realizing import FetchContext
from arr_coc.training.checkpointing import load_state
from arr_coc.training.loop import Loop, adamw
from arr_coc.training.reading import SLOTS, ReadingHead, pixels, reading_loss, word_loss, word_targets
from arr_coc.training.streaming import per_step, prefetched

TRANSCRIBE = "Read the page."
"""What the second turn of a transcribing batch asks for: the fetched lines, top to bottom."""


@dataclass(frozen=True)
class AnsweringStage:
    """Settings of the stage.

    Attributes:
        steps: optimiser steps.
        pages, questions: pages per step, and questions about each.
        learning_rate: of everything but the grid encoder; encoder_rate: of the grid encoder.
        frozen_steps: steps at the start in which the grid encoder is not trained.
        start_mix, end_mix: how often each strategy is drawn at the first step and from half of the steps on.
        budgets: how often each budget is drawn.
        transcribed: share of the oracle batches that also transcribe.
        transcript_budget: their number of saccades; lines are fetched and transcribed as long as they fit.
        relevance_share: share of the questions that the scorers are trained on in a step that does not fetch by one.
        relevance_weight, token_weight, reading_weight: of the losses beside the answer's.
        evaluate_every: steps between measurements and checkpoints.
        evaluate_questions: questions asked in a measurement.
        evaluate_split: what is measured on: "test" has held-out fonts and layouts.
    """

    steps: int = 3000
    pages: int = 12
    questions: int = 4
    learning_rate: float = 1.5e-3
    encoder_rate: float = 3e-4
    frozen_steps: int = 600
    weight_decay: float = 0.02
    warmup: int = 100
    start_mix: Mapping[str, float] = field(
        default_factory=lambda: {"oracle": 0.85, "realizer": 0.05, "none": 0.05, "saliency": 0.05}
    )
    end_mix: Mapping[str, float] = field(
        default_factory=lambda: {
            "oracle": 0.2,
            "realizer": 0.5,
            "none": 0.1,
            "saliency": 0.1,
            "random": 0.04,
            "clip_query": 0.04,
            "variance": 0.02,
        }  # fmt: skip
    )
    budgets: Mapping[str, float] = field(
        default_factory=lambda: {"standard": 0.6, "balanced": 0.2, "fast": 0.1, "accurate": 0.1}
    )
    transcribed: float = 0.8
    transcript_budget: int = 112
    relevance_share: float = 0.34
    relevance_weight: float = 2.0
    token_weight: float = 0.3
    reading_weight: float = 0.3
    evaluate_every: int = 200
    evaluate_questions: int = 192
    evaluate_split: Split = "test"
    seed: int = 0
    workers: int = 1


@dataclass
class Batch:
    """P pages with Q questions each: I = P*Q slots, page-major.

    `pixel_values` [P, 3, S, S]; `glyphs` [P, G, G, SLOTS]; `words` [P, G, G]; `before`, `after`: [I, *] token ids before and
    after the
    vision tokens, padded on the right; `answer`: [I, *] True on the tokens of `after` that are to be predicted; and
    `query`: [I, *] True on the question's tokens of `after`; `relevance`: [I, N] patches of the
    answer and its label; `oracle`: [I, N] what strategy "oracle" fetches; `transcript`: the same with a second turn.
    """

    pixel_values: Tensor
    glyphs: Tensor
    words: Tensor
    before: Tensor
    after: Tensor
    answer: Tensor
    query: Tensor
    relevance: Tensor
    oracle: Tensor
    transcript: "Batch | None" = None


class Prompts:
    """Tokenises prompts around the vision tokens, which are put in later, as many as the batch's budget asks for."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, image_token_id: int) -> None:
        self.tokenizer, self.markers = tokenizer, query_markers(tokenizer)
        self.image_token_id, self.pad = image_token_id, tokenizer.pad_token_id

    def _turn(self, content: list[dict[str, str]]) -> list[int]:
        prompt = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}],
            chat_template=CHAT_TEMPLATE,
            tokenize=False,
            add_generation_prompt=True,
        )
        return self.tokenizer(prompt, add_special_tokens=False).input_ids

    def _spelt(self, answer: str) -> list[int]:
        return [*self.tokenizer(answer, add_special_tokens=False).input_ids, self.tokenizer.eos_token_id]

    def __call__(
        self, question: str, answer: str, transcript: str | None = None
    ) -> tuple[list[int], list[int], list[bool], list[bool]]:
        """Ids before and after the image; of the latter, which are to be predicted and which are the question.

        With `transcript`, a second turn asks for it.
        """
        ids = self._turn([{"type": "image"}, {"type": "text", "text": question}])
        place = ids.index(self.image_token_id)
        query = find_query_tokens(torch.tensor([ids]), **self.markers)[0].tolist()[place + 1 :]
        after, spelt = ids[place + 1 :], self._spelt(answer)
        predicted = [False] * len(after) + [True] * len(spelt)
        after = after + spelt
        if transcript is not None:
            asked, read = self._turn([{"type": "text", "text": TRANSCRIBE}]), self._spelt(transcript)
            after += self.tokenizer("\n", add_special_tokens=False).input_ids + asked + read
            predicted += [False] * (len(after) - len(predicted) - len(read)) + [True] * len(read)
        return ids[:place], after, predicted, query + [False] * (len(after) - len(query))


class QuestionPages(IterableDataset):
    """Endless batches; a function of (seed, split, position)."""

    def __init__(
        self,
        stage: AnsweringStage,
        config: ArrCocConfig,
        prompts: Prompts,
        *,
        split: Split,
        start: int = 0,
        held_out: bool = False,
    ) -> None:
        self.stage, self.prompts, self.split, self.start = stage, prompts, split, start
        self.purpose = 3 if held_out else 2  # pages that are measured on never come up in training, whatever the split
        self.size, self.grid = config.vision_config.image_size, config.vision_config.grid_size

    def __iter__(self) -> Iterator[Batch]:
        return per_step(self.batch, self.start)

    def batch(self, step: int) -> Batch:
        """The batch of one step."""
        rng = np.random.default_rng((self.stage.seed, self.purpose, step))
        images, glyphs, words, short, long, relevance, unions = [], [], [], [], [], [], []
        for _ in range(self.stage.pages):
            document = render_document(rng, size=self.size, split=self.split)
            images.append(pixels(np.asarray(document.image.convert("RGB"))))
            glyphs.append(glyph_targets(document.glyphs, size=self.size, grid=self.grid, slots=SLOTS))
            words.append(word_targets(document.entries, size=self.size, grid=self.grid))
            order = rng.permutation(len(document.entries))
            for number in range(self.stage.questions):
                turned = np.roll(order, -number)  # the one asked about first, then the others in a drawn order
                entries = [document.entries[int(index)] for index in turned]
                asked = (ask(rng, entries[0].field, split=self.split), entries[0].value)
                kept, union = self._fitting(entries)
                lines = "\n".join(f"{entry.label} {entry.value}" for entry in kept)
                short.append(self.prompts(*asked))
                long.append(self.prompts(*asked, lines))
                relevance.append(self._patches(entries[0]))
                unions.append(union)
        shared = {"pixel_values": images, "glyphs": glyphs, "words": words, "relevance": relevance}
        tensors = {name: torch.from_numpy(np.stack(arrays)) for name, arrays in shared.items()}
        transcript = Batch(**tensors, **self._padded(long), oracle=torch.from_numpy(np.stack(unions)))
        return Batch(**tensors, **self._padded(short), oracle=tensors["relevance"], transcript=transcript)

    def _patches(self, entry: Entry) -> np.ndarray:
        """[N] 1 on the patches of an entry's label and value."""
        return box_targets([entry.label_box, entry.value_box], size=self.size, grid=self.grid).reshape(-1)

    def _fitting(self, entries: list[Entry]) -> tuple[list[Entry], np.ndarray]:
        """The first entry and those after it that fit into the transcript's budget, top to bottom; their patches."""
        kept, union = [entries[0]], self._patches(entries[0])
        for entry in entries[1:]:
            more = np.maximum(union, self._patches(entry))
            if more.sum() > self.stage.transcript_budget:
                break
            kept.append(entry)
            union = more
        return sorted(kept, key=lambda entry: entry.value_box[1]), union

    def _padded(self, texts: list[tuple[list[int], list[int], list[bool], list[bool]]]) -> dict[str, Tensor]:
        length = max(len(after) for _, after, _, _ in texts)
        after, answer, query = (
            torch.tensor([list(text[part]) + [fill] * (length - len(text[part])) for text in texts])
            for part, fill in ((1, self.prompts.pad), (2, False), (3, False))
        )
        before = torch.tensor([before for before, *_ in texts])
        return {"before": before, "after": after, "answer": answer, "query": query}


class Learner(nn.Module):
    """The model with the heads that only training uses.

    A fetched token names its first character through the language model's vocabulary as it is, the next ones after a
    linear map each.
    """

    def __init__(self, model: ArrCocForConditionalGeneration, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        config = model.config
        self.model = model
        self.reading = ReadingHead(config.vision_config.out_channels)
        size = config.text_config.hidden_size
        self.token_norm = nn.RMSNorm(size)
        self.next_slots = nn.Linear(size, (SLOTS - 1) * size, bias=False)
        names = [" ", *CHARSET]
        ids = [tokenizer(name, add_special_tokens=False).input_ids[0] for name in names]
        self.character_ids: Tensor
        self.register_buffer("character_ids", torch.tensor(ids))

    def reading_loss(self, features: Tensor, batch: Batch) -> Tensor:
        """What the reading stage minimised, on this batch's pages."""
        characters, fields = self.reading(features)
        return reading_loss(characters, batch.glyphs) + word_loss(fields, batch.words)

    def token_loss(self, tokens: Tensor, glyphs: Tensor) -> Tensor:
        """Fetched tokens [I, K, D] must name the characters of their patches, `glyphs` [I, K, SLOTS]."""
        following = self.next_slots(tokens).unflatten(-1, (SLOTS - 1, -1))
        slots = self.token_norm(torch.cat((tokens[:, :, None], following), 2))
        return reading_loss(self.model.lm_head(slots), self.character_ids[glyphs], none=int(self.character_ids[0]))

    def forward(
        self,
        batch: Batch,
        *,
        strategy: str,
        budget: int,
        stage: AnsweringStage,
        generator: torch.Generator,
        frozen: bool,
    ) -> dict[str, Tensor]:
        """Losses, and (under "right") whether each question was answered exactly, teacher-forced."""
        model, count = self.model, len(batch.after)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            features = model.model.vision_tower.grid_encoder(batch.pixel_values)
        encoding = model.model.encode_features(features, batch.pixel_values)
        pages = torch.arange(len(features)).repeat_interleave(count // len(features))
        base = encoding.tokens.shape[1]
        vision = torch.full((count, base + budget), model.config.image_token_id)
        ids = torch.cat((batch.before, vision, batch.after), 1)
        lead = batch.before.shape[1] + base + budget
        query = F.pad(batch.query, (lead, 0))
        noise = torch.rand(batch.oracle.shape, generator=generator)  # the rest of an oracle's budget is drawn
        embeds, tokens, fetched, context = model.model.embed_prompt(
            ids, encoding, query_mask=query, image_index=pages, strategy=strategy,
            oracle=batch.oracle + 0.5 * noise, generator=generator,
        )  # fmt: skip
        hidden = model.model(embeds, use_cache=False).last_hidden_state[:, lead - 1 : -1]
        chosen = batch.answer
        logits = model.lm_head(hidden[chosen])
        targets = batch.after[chosen]
        rows = torch.arange(count)[:, None].expand_as(chosen)[chosen]
        wrong = torch.zeros(count).index_add_(0, rows, (logits.argmax(-1) != targets).float())
        losses = {"answer": F.cross_entropy(logits, targets), "right": wrong == 0}
        if self.training:
            if strategy in model.model.fetcher.scorers:
                losses["relevance"] = model.relevance_loss(context, batch.relevance, fetched)
            else:
                kept = torch.randperm(count, generator=generator)[: max(1, round(stage.relevance_share * count))]
                losses["relevance"] = model.relevance_loss(_rows(context, kept), batch.relevance[kept])
            if not frozen:
                losses["reading"] = self.reading_loss(features, batch)
            if budget:
                at = batch.glyphs.flatten(1, 2)[pages].gather(1, fetched.indices[..., None].expand(-1, -1, SLOTS))
                losses["token"] = self.token_loss(tokens[:, base:], at)
        hit = batch.relevance.gather(1, fetched.indices).sum(1) / batch.relevance.sum(1)
        losses["recall"] = hit.mean()
        return losses


def _rows(context: FetchContext, index: Tensor) -> FetchContext:
    picked = {
        name: getattr(context, name)[index]
        for name in ("features", "textures", "patch_mask", "query", "query_mask", "seeds")
    }
    return FetchContext(**picked)


def _mix(stage: AnsweringStage, step: int) -> dict[str, float]:
    """How often each strategy is drawn at `step`: linear from the start's mix to the end's over half of the steps."""
    progress = min(1.0, 2 * step / stage.steps)
    names = {**stage.start_mix, **stage.end_mix}
    return {n: (1 - progress) * stage.start_mix.get(n, 0.0) + progress * stage.end_mix.get(n, 0.0) for n in names}


def _draw(generator: torch.Generator, weights: Mapping[str, float]) -> str:
    chosen = torch.multinomial(torch.tensor(list(weights.values())), 1, generator=generator)
    return list(weights)[int(chosen)]


@torch.no_grad()
def measure(
    learner: Learner, batches: list[Batch], stage: AnsweringStage, strategies: tuple[str, ...]
) -> dict[str, tuple[float, float]]:
    """Exact match and recall per strategy at the standard budget, on batches of held-out fonts and layouts."""
    learner.eval()
    budget = resolve_budget("standard", learner.model.config.vision_config.num_patches)
    scores = {}
    for strategy in strategies:
        generator = torch.Generator().manual_seed(0)
        count = 0 if strategy == "none" else budget
        outputs = [
            learner(batch, strategy=strategy, budget=count, stage=stage, generator=generator, frozen=True)
            for batch in batches
        ]
        right = torch.cat([output["right"] for output in outputs]).float().mean().item()
        recall = torch.stack([output["recall"] for output in outputs]).mean().item() if count else 0.0
        scores[strategy] = (right, recall)
    learner.train()
    return scores


def _optimizer(learner: Learner, stage: AnsweringStage) -> torch.optim.Optimizer:
    slow = [*learner.model.model.vision_tower.grid_encoder.parameters(), *learner.reading.parameters()]
    known = {id(parameter) for parameter in slow}
    fast = [parameter for parameter in learner.parameters() if id(parameter) not in known]
    return adamw([(slow, stage.encoder_rate), (fast, stage.learning_rate)], stage.weight_decay)


def _begin_with(learner: Learner, weights: dict[str, Tensor]) -> None:
    """Takes over an earlier stage's weights: all of an answering stage's, encoder and head of a reading stage's."""
    if any(name.startswith("model.") for name in weights):
        learner.load_state_dict(weights)
        return
    encoder = learner.model.model.vision_tower.grid_encoder
    for prefix, part in (("encoder.", encoder), ("head.", learner.reading)):
        part.load_state_dict({k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)})


def train_answering(
    model: ArrCocForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    stage: AnsweringStage,
    out: Path,
    start: Path | None = None,
) -> ArrCocForConditionalGeneration:
    """Runs (or resumes) the stage and returns the trained model.

    Args:
        model: freshly initialised, or trained before.
        tokenizer: its tokenizer.
        stage: settings.
        out: folder for `answering.pt`, from which a killed run goes on.
        start: checkpoint of the stage before, with whose weights this one begins, or None.
    """
    torch.manual_seed(stage.seed)
    learner = Learner(model, tokenizer).train()
    optimizer = _optimizer(learner, stage)
    loop = Loop("answering", learner, optimizer, out / "answering.pt", stage.steps, stage.warmup, stage.evaluate_every)
    first = loop.resume()
    if first is None and start is not None:
        _begin_with(learner, (load_state(start) or {})["weights"])
    first = first or 0
    prompts = Prompts(tokenizer, model.config.image_token_id)
    held_out = QuestionPages(stage, model.config, prompts, split=stage.evaluate_split, held_out=True)
    test = [held_out.batch(i) for i in range(-(-stage.evaluate_questions // (stage.pages * stage.questions)))]
    pages = QuestionPages(stage, model.config, prompts, split="train", start=first)
    loader = prefetched(pages, stage.workers)
    patches = model.config.vision_config.num_patches

    def losses(step: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(stage.seed * 1_000_003 + step)
        strategy = _draw(generator, _mix(stage, step))
        budget = 0 if strategy == "none" else resolve_budget(_draw(generator, stage.budgets), patches)
        batch, name = next(loader), f"answer/{strategy}"
        if strategy == "oracle" and torch.rand((), generator=generator) < stage.transcribed:
            batch, budget, name = batch.transcript, stage.transcript_budget, "transcript"
        frozen = step < stage.frozen_steps
        found = learner(batch, strategy=strategy, budget=budget, stage=stage, generator=generator, frozen=frozen)
        weights = {"answer": 1.0, "relevance": stage.relevance_weight, "token": stage.token_weight}
        weights["reading"] = stage.reading_weight
        parts = {part: found[part] for part in weights if part in found}
        total = torch.stack([weights[part] * value for part, value in parts.items()]).sum()
        logged = {part: value.detach() for part, value in parts.items() if part != "answer"}
        return {"loss": total, name: found["answer"].detach(), **logged}

    def evaluate() -> str:
        scores = measure(learner, test, stage, ("oracle", "realizer", "none"))
        return ", ".join(f"{name} {right:.3f} (recall {recall:.3f})" for name, (right, recall) in scores.items())

    loop.run(first, losses, evaluate)
    return model
