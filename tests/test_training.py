"""Training: data as a function of the step, exact resume, recipes, and that both stages run and learn something."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import tiny_config
from torch import Tensor, nn

from arr_coc.data import CHARSET, box_targets, glyph_targets, render_document
from arr_coc.data.sketching import sketch_document
from arr_coc.data.vocabulary import build_tokenizer, question_words
from arr_coc.modeling.configuration_arr_coc import ArrCocConfig
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.training.answering import AnsweringStage, Learner, _mix, train_answering
from arr_coc.training.checkpointing import load_state, load_weights, save_learner, save_state
from arr_coc.training.copying import Copying, CopyingStage, pointer_loss, train_copying
from arr_coc.training.loop import Loop, adamw
from arr_coc.training.questions import Batch, Prompts, QuestionPages
from arr_coc.training.reading import SLOTS, ReadingPages, ReadingStage, reading_loss, train_reading, values_read
from arr_coc.training.recipe import load_recipe
from arr_coc.training.schedules import warmup_cosine

RECIPE = Path(__file__).parents[1] / "hub_configs" / "arr-coc-tiny" / "train.yaml"
READING = ReadingStage(steps=4, batch_size=4, warmup=1, evaluate_every=2, workers=0, evaluate_split="train")
ANSWERING = AnsweringStage(
    steps=3, pages=2, questions=2, aligned_steps=1, frozen_steps=2, transcript_budget=24, evaluate_every=3,
    evaluate_questions=4, workers=0, evaluate_split="train",
)  # fmt: skip


@pytest.fixture(scope="module")
def config() -> ArrCocConfig:
    tokenizer = build_tokenizer()
    given = tiny_config().to_dict()
    text = {**given["text_config"], "vocab_size": len(tokenizer), "max_position_embeddings": 1024}
    image = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    parts = {name: given[name] for name in ("vision_config", "semantic_config", "fetcher_config", "bridge_config")}
    return ArrCocConfig(**parts, text_config=text, image_token_id=image)


BUDGET = 24


def questions(config: ArrCocConfig, prompts: Prompts, *, sketched: bool = False) -> Batch:
    return QuestionPages(ANSWERING, config, prompts, split="train", transcript_budget=BUDGET, sketched=sketched).batch(
        0
    )


# ---- vocabulary ---------------------------------------------------------------------------------------------------


def test_fields_are_single_tokens_and_values_are_spelt() -> None:
    tokenizer = build_tokenizer()
    assert tokenizer.tokenize("What is the subtotal?")[4:] == ["Ġis", "Ġthe", "Ġsubtotal", "?"]
    assert tokenizer.tokenize("Brussels") == list("Brussels")
    assert "subtotal" in question_words()


@pytest.mark.parametrize("text", ["$1,204.00", "New York", "naïve ☂ text", "  two  spaces", CHARSET])
def test_any_text_survives_the_tokenizer(text: str) -> None:
    tokenizer = build_tokenizer()
    assert tokenizer.decode(tokenizer(text).input_ids) == text


# ---- data ---------------------------------------------------------------------------------------------------------


def test_reading_batches_depend_on_the_step_alone(config: ArrCocConfig) -> None:
    pages = ReadingPages(READING, config.vision_config, split="train")
    later = ReadingPages(READING, config.vision_config, split="train", start=1)
    first, second = (batch for batch, _ in zip(iter(pages), range(2), strict=False))
    resumed = next(iter(later))
    assert torch.equal(second[0], resumed[0]) and torch.equal(second[1], resumed[1])
    assert not torch.equal(first[0], second[0])
    side, grid = config.vision_config.image_size // 2, config.vision_config.grid_size // 2
    assert first[0].shape == (4, 3, side, side) and first[1].shape == (4, grid, grid, SLOTS)
    assert first[2].shape == (4, grid, grid)


def test_held_out_pages_are_not_the_training_pages(config: ArrCocConfig) -> None:
    training = ReadingPages(READING, config.vision_config, split="train").batch(0)
    held_out = ReadingPages(READING, config.vision_config, split="train", held_out=True).batch(0)
    assert not torch.equal(training[0], held_out[0])


def test_prompt_marks_question_answer_and_where_each_character_is(config: ArrCocConfig) -> None:
    tokenizer = build_tokenizer()
    answer = [("1", 4), ("2", 4), (".", 5), ("5", 5), ("0", 6)]
    text = Prompts(tokenizer, config.image_token_id)("What is the tax?", answer, [("a", 1), (" ", -1), ("B", 2)])
    chosen = [token for token, is_answer in zip(text.after, text.answer, strict=True) if is_answer]
    asked = [token for token, is_query in zip(text.after, text.query, strict=True) if is_query]
    places = [place for place, is_answer in zip(text.places, text.answer, strict=True) if is_answer]
    assert tokenizer.decode(chosen) == "12.50<|im_end|>a B<|im_end|>"
    assert tokenizer.decode(asked) == "What is the tax?"
    assert tokenizer.decode(text.before) == "<|im_start|>user\n<|vision_start|>"
    assert places == [4, 4, 5, 5, 6, -1, 1, -1, 2, -1]


@pytest.mark.parametrize("sketched", [True, False])
def test_places_name_the_patch_that_shows_the_character(config: ArrCocConfig, sketched: bool) -> None:
    """Rendered pages list all labels before all values: places must come from boxes, not from the glyphs' order."""
    tokenizer = build_tokenizer()
    prompts = Prompts(tokenizer, config.image_token_id)
    batch = questions(config, prompts, sketched=sketched).transcript
    assert batch is not None
    shown = batch.glyphs.flatten(1, 2).repeat_interleave(ANSWERING.questions, 0)
    found = [
        tokenizer.decode([token]) in {CHARSET[c - 1] for c in shown[row, place].tolist() if c}
        for row in range(len(batch.after))
        for token, place in zip(batch.after[row].tolist(), batch.places[row].tolist(), strict=True)
        if place >= 0
    ]
    assert len(found) > 20 and sum(found) >= 0.97 * len(found)  # narrow letters may share a patch with more than three


def test_question_batch_shapes_and_that_relevance_covers_the_answer(config: ArrCocConfig) -> None:
    batch = questions(config, Prompts(build_tokenizer(), config.image_token_id))
    assert batch.pixel_values.shape[0] == 2 and batch.after.shape[0] == 4
    assert batch.relevance.shape == (4, config.vision_config.num_patches)
    assert bool((batch.relevance.sum(1) > 0).all()) and bool((batch.answer & batch.query).sum() == 0)
    assert batch.transcript is not None
    assert bool((batch.transcript.oracle >= batch.relevance).all()), "what is asked about is always fetched"
    assert int(batch.transcript.oracle.sum(1).max()) <= max(BUDGET, int(batch.relevance.sum(1).max()))


def test_sketches_are_seeded_and_inside_the_page() -> None:
    one, again = (sketch_document(np.random.default_rng(5)) for _ in range(2))
    assert one == again
    boxes = [entry.value_box for entry in one[0]]
    assert all(0 <= x0 < x1 <= 256 and 0 <= y0 < y1 <= 256 for x0, y0, x1, y1 in boxes)


# ---- loop ---------------------------------------------------------------------------------------------------------


def test_schedule_warms_up_then_falls_to_its_floor() -> None:
    factors = [warmup_cosine(step, steps=100, warmup=10) for step in range(100)]
    assert factors[0] == pytest.approx(0.1) and max(factors) == pytest.approx(1.0)
    assert factors[9:] == sorted(factors[9:], reverse=True) and factors[-1] == pytest.approx(0.02, abs=1e-2)


def test_interrupted_write_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.pt"
    save_state(path, {"step": 1})

    def half(state: object, target: Path) -> None:
        Path(target).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(KeyboardInterrupt):
        save_state(path, {"step": 2})
    assert load_state(path) == {"step": 1}


def test_resume_gives_the_same_weights_as_an_uninterrupted_run(tmp_path: Path) -> None:
    def trained(path: Path, stops: list[int]) -> torch.Tensor:
        for stop in stops:
            torch.manual_seed(0)
            layer = nn.Linear(3, 1)
            loop = Loop("test", layer, adamw([(list(layer.parameters()), 0.1)], 0.01), path, 6, 2, 2)

            def losses(step: int, layer: nn.Linear = layer, stop: int = stop) -> dict[str, torch.Tensor]:
                if step == stop:
                    raise KeyboardInterrupt
                data = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
                return {"loss": (layer(data) - data.sum(1, keepdim=True)).square().mean()}

            try:
                loop.run(loop.resume() or 0, losses, lambda: "")
            except KeyboardInterrupt:
                continue
        return layer.weight.detach()

    whole, broken = trained(tmp_path / "a.pt", [-1]), trained(tmp_path / "b.pt", [3, 5, -1])
    assert torch.equal(whole, broken)


def test_none_weighs_less_in_the_reading_loss() -> None:
    logits = torch.zeros(1, 1, 1, 2, 5)
    logits[..., 1] = 2.0
    wrong_none, wrong_letter = torch.tensor([0, 1]), torch.tensor([1, 3])
    assert reading_loss(logits, wrong_none.view(1, 1, 1, 2)) < reading_loss(logits, wrong_letter.view(1, 1, 1, 2))


# ---- stages -------------------------------------------------------------------------------------------------------


def test_reading_stage_learns_and_resumes(config: ArrCocConfig, tmp_path: Path) -> None:
    train_reading(config.vision_config, READING, tmp_path)
    state = load_state(tmp_path / "reading.pt")
    assert state is not None and state["step"] == READING.steps
    train_reading(config.vision_config, READING, tmp_path)  # finished: nothing to do
    again = load_state(tmp_path / "reading.pt")
    assert again is not None and torch.equal(
        again["weights"]["head.linear.weight"], state["weights"]["head.linear.weight"]
    )


def test_values_read_counts_values_with_every_character_right() -> None:
    document = render_document(np.random.default_rng(0), size=256, split="train")
    truth = glyph_targets(document.glyphs, size=256, grid=32, slots=SLOTS)

    class Answers(nn.Module):
        """A head that names what it was told, whatever the encoder says."""

        def __init__(self, named: np.ndarray) -> None:
            super().__init__()
            self.logits = nn.functional.one_hot(torch.from_numpy(named), 1 + len(CHARSET)).float()[None]

        def forward(self, features: Tensor) -> tuple[Tensor, None]:
            return self.logits, None

    assert values_read(nn.Identity(), Answers(truth), [document]) == 1.0
    value = document.entries[1].value_box
    y, x = np.argwhere((truth[..., 0] > 0) & (box_targets([value], size=256, grid=32) > 0))[0]
    truth[y, x, 0] = 1 + truth[y, x, 0] % len(CHARSET)
    wrong = values_read(nn.Identity(), Answers(truth), [document])
    assert wrong == pytest.approx(1 - 1 / len(document.entries))


def test_pointer_loss_is_the_attention_paid_to_the_right_patch() -> None:
    attention = torch.tensor([[[0.5, 0.25, 0.25], [0.2, 0.2, 0.6], [1.0, 0.0, 0.0]]])
    indices, places = torch.tensor([[3, 8, 9]]), torch.tensor([[3, 9, 7]])  # 7 was not fetched
    expected = -(torch.tensor(0.5).log() + torch.tensor(0.6).log()) / 2
    assert pointer_loss(attention, indices, places).item() == pytest.approx(expected.item())


def test_copying_stage_lowers_its_loss(config: ArrCocConfig, tmp_path: Path) -> None:
    torch.manual_seed(0)
    stage = CopyingStage(steps=6, pages=2, questions=2, budget=BUDGET, warmup=1, evaluate_every=6, workers=0)
    model, tokenizer = ArrCocForConditionalGeneration(config), build_tokenizer()
    prompts = Prompts(tokenizer, config.image_token_id)
    batch = questions(config, prompts, sketched=True).transcript
    assert batch is not None

    def loss(copying: Copying) -> float:
        model.model.language_model.set_attn_implementation("eager")
        return copying(batch, BUDGET, torch.Generator().manual_seed(0), base=True)["answer"].item()

    before = loss(Copying(model, tokenizer))
    copying = train_copying(model, tokenizer, stage, tmp_path)
    assert model.model.language_model.config._attn_implementation == "sdpa"
    assert loss(copying) < before - 0.2


def test_answering_stage_takes_over_what_was_trained(config: ArrCocConfig, tmp_path: Path) -> None:
    train_reading(config.vision_config, READING, tmp_path)
    tokenizer = build_tokenizer()
    stage = CopyingStage(steps=1, pages=1, questions=1, budget=BUDGET, warmup=1, evaluate_every=1, workers=0)
    train_copying(ArrCocForConditionalGeneration(config), tokenizer, stage, tmp_path)
    model = ArrCocForConditionalGeneration(config)
    rates = {"learning_rate": 0.0, "encoder_rate": 0.0, "language_rate": 0.0}
    before = [tmp_path / "copying.pt", tmp_path / "reading.pt"]
    train_answering(model, tokenizer, AnsweringStage(**{**vars(ANSWERING), **rates}), tmp_path, before)
    read = (load_state(tmp_path / "reading.pt") or {})["weights"]["encoder.neck.conv2.weight"]
    spoken = (load_state(tmp_path / "copying.pt") or {})["weights"]["model.lm_head.weight"]
    assert torch.equal(model.model.vision_tower.grid_encoder.neck.conv2.weight, read)
    assert torch.equal(model.lm_head.weight, spoken)


def test_training_goes_on_from_a_trained_models_folder(config: ArrCocConfig, tmp_path: Path) -> None:
    """Every stage begins with what the folder holds: with learning rates of zero it gives the same weights back."""
    model, tokenizer, trained = ArrCocForConditionalGeneration(config), build_tokenizer(), tmp_path / "trained"
    learner = Learner(model, tokenizer)
    model.save_pretrained(trained)
    save_learner(learner.state_dict(), trained)
    expected = {name: weight.clone() for name, weight in learner.state_dict().items()}
    assert load_weights(trained).keys() == expected.keys() - {"model.lm_head.weight"}, "tied"

    still = {"learning_rate": 0.0, "weight_decay": 0.0}
    train_reading(config.vision_config, ReadingStage(**{**vars(READING), **still}), tmp_path / "read", trained)
    read = load_weights(tmp_path / "read" / "reading.pt")
    assert torch.equal(read["head.words.weight"], expected["reading.words.weight"])
    prefix = "model.model.vision_tower.grid_"
    assert all(torch.equal(w, expected[prefix + n]) for n, w in read.items() if n.startswith("encoder."))

    other = ArrCocForConditionalGeneration(config)
    stage = CopyingStage(
        steps=1, pages=1, questions=1, budget=BUDGET, warmup=1, evaluate_every=1, workers=0, **still
    )  # fmt: skip
    copying = train_copying(other, tokenizer, stage, tmp_path / "copied", trained)
    assert torch.equal(copying.language.word.weight, expected["language.word.weight"])
    assert torch.equal(other.lm_head.weight, expected["model.lm_head.weight"])

    rates = {**still, "encoder_rate": 0.0, "language_rate": 0.0}
    other = ArrCocForConditionalGeneration(config)
    train_answering(other, tokenizer, AnsweringStage(**{**vars(ANSWERING), **rates}), tmp_path / "all", [trained])
    assert all(torch.equal(weight, expected["model." + name]) for name, weight in other.state_dict().items())

    (trained / "learner.safetensors").unlink()
    with pytest.raises(ValueError, match="without learner.safetensors"):
        load_weights(trained)


@pytest.mark.parametrize("strategy", ["none", "random", "saliency", "variance", "clip_query", "realizer", "oracle"])
def test_every_strategy_has_a_gradient_into_all_that_answers(config: ArrCocConfig, strategy: str) -> None:
    learner = Learner(ArrCocForConditionalGeneration(config), build_tokenizer()).train()
    learner.model.model.language_model.set_attn_implementation("eager")
    batch = questions(config, Prompts(build_tokenizer(), config.image_token_id))
    budget = 0 if strategy == "none" else 6
    generator = torch.Generator().manual_seed(0)
    found = learner(batch, strategy=strategy, budget=budget, stage=ANSWERING, generator=generator, frozen=False)
    losses = [value for name, value in found.items() if name not in ("right", "recall")]
    torch.stack(losses).sum().backward()
    left_out = {n for n, p in learner.named_parameters() if p.grad is None and p.requires_grad}
    assert left_out == ({n for n, _ in learner.named_parameters() if "saccade" in n} if strategy == "none" else set())


def test_mix_goes_from_oracle_to_learned() -> None:
    stage = AnsweringStage(steps=100)
    first, last = _mix(stage, 0), _mix(stage, 99)
    assert first["oracle"] > 0.8 and last["realizer"] > last["oracle"]
    assert sum(first.values()) == pytest.approx(1) and sum(last.values()) == pytest.approx(1)


# ---- recipes ------------------------------------------------------------------------------------------------------


def test_the_shipped_recipe_loads() -> None:
    recipe = load_recipe(RECIPE)
    assert [type(stage).__name__ for stage in recipe.stages] == [
        "ReadingStage",
        "CopyingStage",
        "AnsweringStage",
    ]
    assert (recipe.model / "config.json").is_file()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "stages: [{stage: dreaming}]",
            "expected stage to be one of reading, .*joint; got 'dreaming'",
        ),
        ("stages: [{stage: reading, stepz: 3}]", r"expected settings among steps.*got \['stepz'\]"),
        ("seed: 1", "expected a mapping with a list of stages"),
        ("just words", "expected a mapping with a list of stages"),
    ],
)
def test_bad_recipes_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_recipe(path)
