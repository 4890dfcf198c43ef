"""Stages that teach a checkpoint to read pages into wordpieces: targets, crops, perfect tokens, a few steps each."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from helpers import tiny_checkpoint, tiny_model, tiny_tokenizer
from peft import PeftModel
from PIL import Image, ImageDraw
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.data.domains.page import UNKNOWN, Line, Question, TextPage
from arr_coc.modeling.image_processing_arr_coc import ArrCocImageProcessor
from arr_coc.modeling.scorers import WordMatch
from arr_coc.modeling.wordpieces import PIECE_SLOTS, NamedPieces, WordpieceHead
from arr_coc.training.from_scratch.targets import pixels
from arr_coc.training.reader.end_to_end import EndToEnd, EndToEndStage, PageBatches
from arr_coc.training.reader.language_model import Prompting, seen
from arr_coc.training.reader.pages import PAGES, CropBatches, Sources, crop, square
from arr_coc.training.reader.question_answering import AskedBatches, QuestionAnsweringStage
from arr_coc.training.reader.recognition import (
    RecognitionHead,
    RecognitionStage,
    StemHead,
    hand_over,
    piece_loss,
    start_encoder,
)
from arr_coc.training.reader.relevance import RelevanceStage, start_match
from arr_coc.training.reader.targets import (
    CLASSES,
    Piece,
    Wordpieces,
    base_mixture,
    class_of,
    fetched,
    printed,
    sketch,
    slipped,
)
from arr_coc.training.recipe import load_recipe, train
from arr_coc.training.stages import Run

WIDE, TALL = 8.0, 10.0
"""Advance and height of a character of the pages here, px."""


def line(text: str, x: float, y: float, wide: float = WIDE) -> Line:
    """Text whose characters are `wide` px apart, from (x, y) of its upper left corner."""
    left = x + wide * np.arange(len(text), dtype=np.float32)
    return Line(text, np.stack([left, np.full_like(left, y), left + wide, np.full_like(left, y + TALL)], 1))


def page(rng: np.random.Generator, split: str = "train") -> TextPage:
    """Three fields on a page of 128 x 96 px, drawn as bars, and a question about each."""
    image = Image.new("RGB", (128, 96), "white")
    draw, lines, questions = ImageDraw.Draw(image), [], []
    for row, name in enumerate(("tax", "sum", "due")):
        label, value = line(name, 4, 8 + 28 * row), line(str(rng.integers(10, 99)), 64, 8 + 28 * row)
        lines += [label, value]
        for each in (label, value):
            draw.rectangle([*map(float, each.boxes[0, :2]), *map(float, each.boxes[-1, 2:])], fill="black")
        boxes = [(*map(float, each.boxes[0, :2]), *map(float, each.boxes[-1, 2:])) for each in (label, value)]
        questions.append(Question(f"{name}?", (value.text,), (boxes[1],), (boxes[0],), "detail"))
    return TextPage(image, image.size, tuple(lines), tuple(questions), kind="fields")


@pytest.fixture
def fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source "fields"."""
    monkeypatch.setitem(PAGES, "fields", page)


@pytest.fixture
def cut() -> Wordpieces:
    return Wordpieces(tiny_tokenizer())


# ---- wordpieces of words


def test_pieces_know_their_characters_and_the_space_stands_where_the_word_begins(cut: Wordpieces) -> None:
    ids = cut.tokenizer.convert_tokens_to_ids
    assert cut("user") == (Piece(ids("Ġ"), 0, 1), Piece(ids("user"), 0, 4))
    assert cut("the1") == (Piece(ids("Ġthe"), 0, 3), Piece(ids("1"), 3, 4))


def test_bytes_of_one_character_are_pieces_of_it(cut: Wordpieces) -> None:
    assert [(piece.start, piece.end) for piece in cut("é")] == [(0, 1)] * 3  # the space and two bytes


def test_characters_beyond_the_list_share_the_last_class() -> None:
    assert class_of("A") != class_of("a") and class_of("Ж") == class_of(UNKNOWN) == CLASSES - 1


# ---- what a patch shows


def targets(lines: list[Line], cut: Wordpieces, side: int = 64) -> Any:
    """Of one crop of 4 x 4 patches of 16 px, characters where their centres are."""
    text = printed([lines], side, 16, cut)
    grid = side // 16
    patches = text.nearby(grid)[:, 0]
    return text.targets(1, grid, patches)


def test_a_piece_stands_in_the_patch_where_it_begins(cut: Wordpieces) -> None:
    found = targets([line("the user", 2, 3)], cut)  # centres at x = 6, 14, 22, (30), 38, 46, 54, 62
    ids = cut.tokenizer.convert_tokens_to_ids
    assert found.pieces[0, 0, :, 0].tolist() == [ids("Ġthe"), -1, ids("Ġ"), -1]
    assert found.pieces[0, 0, 2, :3].tolist() == [ids("Ġ"), ids("user"), -1]
    assert (found.pieces[0, 1:] == -1).all()
    t, h, e, u, s = map(class_of, "theus")  # of 8 px over cells of 4 px; y from 3 to 13 is over both middles, 4 and 12
    rows = [[t, t, h, h], [e, e, 0, 0], [u, u, s, s]]
    assert found.characters[0, 0, :3].tolist() == [2 * row for row in rows]


def test_a_character_over_no_middle_of_a_cell_has_its_own(cut: Wordpieces) -> None:
    found = targets([line("wi", 0, 0, 3.0)], cut)  # 3 px wide, at 0 and 3; the middles are at 2 and 6
    assert found.characters[0, 0, 0].tolist() == [class_of("w"), class_of("i"), 0, 0] + [0] * 4


def test_two_lines_of_one_patch_keep_apart(cut: Wordpieces) -> None:
    """At 12 px per em lines are closer than patches are high: the upper line's pieces come first, and halves tell."""
    found = targets([line("1", 9, -1), line("2", 1, 7)], cut)  # centres at y = 4 and 12, the lower one further left
    ids = cut.tokenizer.convert_tokens_to_ids
    assert found.pieces[0, 0, 0].tolist() == [ids("Ġ"), ids("1"), ids("Ġ"), ids("2"), -1]
    assert found.lower[0, 0, 0].tolist() == [0, 0, 1, 1, 0]


def test_words_that_the_edge_cuts_and_unknown_characters_are_not_asked_for(cut: Wordpieces) -> None:
    found = targets([line("user", 50, 3), line(f"a{UNKNOWN}", 2, 35)], cut)
    assert (found.pieces[0, 0, 3] == -2).all() and (found.pieces[0, 2, 0] == -2).all()
    assert found.characters[0, 0, 3, :2].tolist() == [class_of("u")] * 2


def test_a_line_near_an_edge_goes_where_it_is_named(cut: Wordpieces) -> None:
    """Its centre is a pixel above the edge between two rows: the encoder's own scores decide, for all of it."""
    text = printed([[line("a b", 4, 9.5)]], 64, 16, cut)  # centre at y = 14.5
    table = torch.nn.functional.normalize(torch.randn(len(cut.tokenizer), 8), dim=-1)
    said = torch.randn(1, 4, 4, PIECE_SLOTS, 8) * 1e-3
    columns = (text.centre[text.first, 0] // 1).long()
    said[0, 1, columns, 0] = table[text.piece]
    named = NamedPieces(torch.zeros(1, 4, 4, 6), said, torch.zeros(1, 4, 4, PIECE_SLOTS), torch.zeros(1))
    head = WordpieceHead(1, 8)
    assert (text.placed_by(named, head, table) // 4).tolist() == [1] * len(text.piece)
    said[0, 0, columns, 0], said[0, 1, columns, 0] = table[text.piece], 0.0
    assert (text.placed_by(named, head, table) // 4).tolist() == [0] * len(text.piece)


# ---- crops


def test_crops_keep_ink_in_the_boxes() -> None:
    drawn = page(np.random.default_rng(0))
    for seed in range(20):
        picture, lines = crop(np.random.default_rng(seed), drawn, 64, (6.0, 30.0))
        assert picture.shape == (64, 64, 3)
        dark = (picture < 60).all(-1)
        shown = np.zeros_like(dark)
        for each in lines:
            x0, y0 = np.floor(each.boxes[:, :2].min(0) - 2).astype(int).clip(0)
            x1, y1 = np.ceil(each.boxes[:, 2:].max(0) + 2).astype(int).clip(0)
            shown[y0:y1, x0:x1] = True
        assert not (dark & ~shown).any(), seed


def test_batches_are_a_function_of_the_step(fields: None, cut: Wordpieces) -> None:
    batches = CropBatches(Sources({"fields": 1.0}, "train"), (3,), 4, 2, 64, (6.0, 30.0), 16, cut)
    first, again, other = batches.batch(5), batches.batch(5), batches.batch(6)
    assert torch.equal(first.pixels, again.pixels) and torch.equal(first.text.piece, again.text.piece)
    assert not torch.equal(first.pixels, other.pixels)


def test_sources_are_checked_before_a_page_is_drawn() -> None:
    with pytest.raises(ValueError, match=r"page source: expected one of .*; got 'paper'"):
        Sources({"paper": 1.0}, "train")
    with pytest.raises(
        ValueError, match=r'pdf_folder: expected a folder of cached pages for the source "pdf"; got none'
    ):
        Sources({"pdf": 1.0}, "train")


# ---- perfect tokens


def test_a_sketch_is_in_reading_order_with_places_on_the_padded_square(cut: Wordpieces) -> None:
    drawn = page(np.random.default_rng(0))
    asked = [(*question.boxes, *question.label_boxes) for question in drawn.questions]
    found = sketch(drawn, asked, 16, cut)  # 128 x 96 px on 16 x 16 patches of 8 px: 2 rows of padding above
    ids = cut.tokenizer.convert_tokens_to_ids
    assert found.pieces[:4].tolist() == [ids("Ġ"), ids("t"), ids("a"), ids("x")]
    assert found.half_rows[0] == 2 * 2 + 2 * 13 // 8  # the first line's middle is 13 px down
    assert found.columns[:4].tolist() == [1, 1, 2, 3]
    assert found.near[:4, 0].all() and not found.near[:4, 1:].any()
    assert (np.diff(found.half_rows) >= 0).all()


def test_fetched_tokens_hold_what_the_questions_ask_for(cut: Wordpieces) -> None:
    drawn = page(np.random.default_rng(0))
    whole = sketch(drawn, [(drawn.questions[1].boxes[0],)], 16, cut)
    for seed in range(10):
        part = fetched(np.random.default_rng(seed), whole, budget=12)
        assert part.near.sum() == whole.near.sum() and len(part.pieces) <= 12


def test_slips_change_a_share_of_the_tokens(cut: Wordpieces) -> None:
    whole = sketch(page(np.random.default_rng(0)), [()], 16, cut)
    assert np.array_equal(slipped(np.random.default_rng(0), whole, 0.0, 50).pieces, whole.pieces)
    assert not np.array_equal(slipped(np.random.default_rng(0), whole, 0.9, 50).pieces, whole.pieces)


def test_base_tokens_average_what_their_cell_holds(cut: Wordpieces) -> None:
    whole = sketch(page(np.random.default_rng(0)), [()], 16, cut)
    cells, weights = base_mixture(whole)
    assert np.allclose(np.bincount(cells, weights)[np.unique(cells)], 1.0)


# ---- questions about a page


def asked_batches(cut: Wordpieces, reads: str = "both") -> AskedBatches:
    stage = QuestionAnsweringStage(pages={"fields": 1.0}, pages_per_step=2, slips=0.0)
    config = SimpleNamespace(grid_size=16)
    return AskedBatches(stage, config, cut, Prompting(cut.tokenizer), split="train", reads={reads: 1.0})  # type: ignore[arg-type]


def test_each_question_sees_the_page_and_itself(fields: None, cut: Wordpieces) -> None:
    batch = asked_batches(cut).batch(0)
    visible, question = seen(batch)[0, 0], batch.question[0]
    for own in range(3):
        rows = visible[question == own]
        assert not rows[:, (question >= 0) & (question != own)].any()
        assert rows[:, question == -1].all()
    starts = [int(batch.positions[0][question == own][0]) for own in range(3)]
    assert len(set(starts)) == 1 and starts[0] == int((question == -1).sum())


def test_answers_are_what_follows_the_question(fields: None, cut: Wordpieces) -> None:
    batch = asked_batches(cut, "fetched").batch(0)
    told = batch.ids.roll(-1, 1)[0][batch.answer[0] & (batch.question[0] == 0)].tolist()
    text = cut.tokenizer.decode(told)
    assert text.endswith("<|im_end|>") and text.removesuffix("<|im_end|>").isdigit()
    assert not batch.base.any() and batch.fetched.any()


def test_reads_are_checked() -> None:
    with pytest.raises(ValueError, match=r"reads: expected shares of both, fetched, base; got \['some'\]"):
        QuestionAnsweringStage(reads={"some": 1.0})


# ---- the stages


def run_of(model: Any) -> Run:
    return Run(model, model.processor)


def curve(folder: Path, stage: str) -> list[dict[str, float]]:
    return [json.loads(text) for text in (folder / f"{stage}.jsonl").read_text().splitlines()]


def test_recognition_learns_and_hands_over_the_encoder(fields: None, tmp_path: Path) -> None:
    model = tiny_model(vision={"window_size": 8, "relative_positions": "cut"})
    stage = RecognitionStage(
        pages={"fields": 1.0}, worn=0.0, steps=12, batch_size=4, side=64, per_page=2, evaluate_every=12, warmup=2,
        learning_rate=1e-2, workers=0, bf16=False, optimizer="adamw",
    )  # fmt: skip
    before = model.model.vision_tower.grid_encoder.patch_embed.projection.weight.clone()
    run = run_of(model)
    stage.run(run, tmp_path)
    first, last = curve(tmp_path, "recognition")[0], curve(tmp_path, "recognition")[-1]
    assert last["held out, fields: wordpieces"] > first["held out, fields: wordpieces"]
    assert not torch.equal(before, model.model.vision_tower.grid_encoder.patch_embed.projection.weight)
    assert "characters.weight" in run.learner["recognition"]


@pytest.mark.parametrize(("x", "y"), [(1, 1), (22, 4), (43, 9), (30, 50)])
def test_the_stem_says_a_character_where_its_cell_is(cut: Wordpieces, x: int, y: int) -> None:
    text = printed([[line("w", x - 1, y - 1, 2.0)]], 64, 16, cut)  # about (x, y)
    cells = text.cells(1, 4)
    features = torch.zeros(1, 3, 8, 8)
    features[0, :, y // 8, x // 8] = 1.0
    head = StemHead(3)
    said = (head(features) - head(torch.zeros_like(features))).abs().amax(-1) > 0  # [1, 4, 4, CELLS]
    assert said.sum() == 2 and said[cells > 0].sum() == 1


def test_the_stem_learns_alone_and_the_encoder_goes_on_from_it(fields: None, tmp_path: Path) -> None:
    model = tiny_model(vision={"stem": "conv", "stem_channels": [8, 16], "window_size": 8})
    settings = dict(pages={"fields": 1.0}, worn=0.0, batch_size=4, side=64, per_page=2, warmup=2, workers=0, bf16=False)
    run = run_of(model)
    RecognitionStage(stem_only=True, steps=30, evaluate_every=30, learning_rate=1e-2, **settings).run(run, tmp_path)
    lines = curve(tmp_path, "recognition")
    assert lines[-1]["held out, fields: characters"] > lines[0]["held out, fields: characters"]
    stem = model.model.vision_tower.grid_encoder.patch_embed
    trained = {name: weight.clone() for name, weight in stem.state_dict().items()}
    (tmp_path / "all").mkdir()
    RecognitionStage(steps=1, evaluate_every=1, learning_rate=1e-9, **settings).run(run, tmp_path / "all")
    for name, weight in stem.state_dict().items():
        assert torch.allclose(weight, trained[name], atol=1e-6), name
    assert set(run.learner) == {"recognition", "stem"}


@torch.no_grad()
def test_a_new_encoder_says_what_its_stem_says() -> None:
    vision = {"stem": "conv", "stem_channels": [8, 16], "stem_wide_blocks": 1, "window_size": 8}
    encoder = tiny_model(vision=vision).model.vision_tower.grid_encoder
    start_encoder(encoder)
    image = torch.randn(1, 3, 64, 64)
    stem = encoder.patch_embed
    assert torch.equal(stem.steps(image), stem.steps[:-1](image))  # the wide block adds nothing yet
    assert torch.allclose(encoder(image), encoder.neck(stem.projection(stem.steps(image))), atol=1e-5)


def test_only_a_convolutional_stem_learns_alone(fields: None, tmp_path: Path) -> None:
    stage = RecognitionStage(pages={"fields": 1.0}, side=64, stem_only=True)
    with pytest.raises(ValueError, match='stem_only: expected an encoder with the stem "conv"; got "patchify"'):
        stage.run(run_of(tiny_model()), tmp_path)


def test_a_bridge_names_what_the_encoder_has_learnt_to_name() -> None:
    model = tiny_model(bridge={"kind": "wordpieces", "places": 16})
    core, head = model.model, RecognitionHead(16, 24).wordpieces
    hand_over(head, core.bridge, core.vision_tower.saccade_projection)
    features = torch.randn(3, 16)
    projected = core.vision_tower.saccade_projection(features)
    for own, trained in zip(vars(core.bridge.head(projected)).values(), vars(head(features)).values(), strict=True):
        assert torch.allclose(own, trained, atol=1e-5)


def test_relevance_trains_the_scorers_alone(fields: None, tmp_path: Path) -> None:
    model = tiny_model(fetcher={"match_size": 8, "scorers": ["realizer"], "budget": 40})
    frozen = {name: weight.clone() for name, weight in model.named_parameters() if "fetcher" not in name}
    head = RecognitionHead(16, 24).state_dict()
    stage = RelevanceStage(
        pages={"fields": 1.0}, worn=0.0, steps=40, questions=3, evaluate_every=40, warmup=4, learning_rate=3e-3,
        workers=0, bf16=False,
    )  # fmt: skip
    run = run_of(model)
    run.learner["recognition"] = head
    stage.run(run, tmp_path)
    lines = curve(tmp_path, "relevance")
    assert lines[-1]["held out, realizer: relevant"] > lines[0]["held out, realizer: relevant"]
    assert all(torch.equal(frozen[name], weight) for name, weight in model.named_parameters() if name in frozen)


def test_a_match_begins_with_what_the_encoder_names() -> None:
    """A patch that names a wordpiece is most like that wordpiece's token."""
    table = torch.randn(30, 24, generator=torch.Generator().manual_seed(0))
    head, match = RecognitionHead(24, 24), WordMatch(24, 24, 23, 8)
    with torch.no_grad():
        head.wordpieces.pieces.weight.copy_(torch.eye(24).repeat(PIECE_SLOTS, 1))
        head.wordpieces.pieces.bias.zero_()
    start_match(match, head.state_dict(), table)
    patches, tokens = match.patch(table).view(30, 4, 23), match.token(table)
    alike = torch.einsum("nm,lm->nl", *(torch.nn.functional.normalize(x, dim=-1) for x in (patches[:, 0], tokens)))
    assert torch.equal(alike.argmax(1), torch.arange(30))


def test_pages_are_placed_as_the_image_processor_places_them() -> None:
    image = page(np.random.default_rng(0)).image
    processed = ArrCocImageProcessor(size={"height": 128, "width": 128}, patch_size=8)(image, return_tensors="pt")
    assert torch.allclose(torch.from_numpy(pixels(square(image, 128))), processed["pixel_values"][0], atol=1e-5)


def test_question_answering_trains_the_adapter_alone(fields: None, tmp_path: Path) -> None:
    model = tiny_model()
    frozen = {name: weight.clone() for name, weight in model.named_parameters()}
    stage = QuestionAnsweringStage(
        pages={"fields": 1.0}, steps=8, pages_per_step=2, evaluate_every=8, evaluated=6, warmup=1, learning_rate=2e-2,
        workers=0, bf16=False, rank=4, slips=0.0,
    )  # fmt: skip
    run = run_of(model)
    stage.run(run, tmp_path)
    lines = curve(tmp_path, "question_answering")
    assert {"held out, both", "held out, fetched", "held out, base", "held out, both, detail"} <= set(lines[0])
    assert any("lora_B" in name and weight.any() for name, weight in run.learner["adapter"].items())
    assert all(torch.equal(frozen[name], weight) for name, weight in model.named_parameters()) and frozen


END_TO_END = {
    "pages": {"fields": 1.0}, "worn": 0.0, "questions": 3, "warmup": 1, "workers": 0, "bf16": False, "rank": 4,
}  # fmt: skip


def named_model(**vision: Any) -> Any:
    """A model whose fetched patches hold wordpieces, as it thinks."""
    model = tiny_model(
        bridge={"kind": "wordpieces", "places": 16}, fetcher={"scorers": ["realizer"], "budget": 40}, vision=vision
    )
    with torch.no_grad():
        model.model.bridge.head.count.bias[2] = 5.0  # two of each patch
    return model


def test_end_to_end_trains_all_behind_the_encoder(fields: None, tmp_path: Path) -> None:
    model = named_model()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    run = run_of(model)
    run.learner["recognition"] = RecognitionHead(16, 24).state_dict()
    EndToEndStage(**END_TO_END, steps=6, evaluate_every=6, learning_rate=1e-2, adapter_rate=1e-2).run(run, tmp_path)
    lines = curve(tmp_path, "end_to_end")
    assert lines[-1]["held out, loss: base"] < lines[0]["held out, loss: base"]
    assert {"held out, both", "held out, fetched, detail", "held out, base", "held out, recall: answer"} <= set(
        lines[0]
    )
    moved = {name.split(".")[1] for name, weight in model.named_parameters() if not torch.equal(before[name], weight)}
    assert moved == {"vision_tower", "bridge", "fetcher"}
    encoder = {name for name in before if "grid_encoder" in name}
    assert encoder and all(torch.equal(before[name], model.get_parameter(name)) for name in encoder)
    assert any("lora_B" in name and weight.any() for name, weight in run.learner["adapter"].items())
    assert torch.equal(run.learner["places"]["rows.weight"], model.model.bridge.places.rows.weight)


def test_the_encoder_learns_end_to_end_where_it_has_a_rate(fields: None, tmp_path: Path) -> None:
    model = named_model()
    before = model.model.vision_tower.grid_encoder.pos_embed.clone()
    EndToEndStage(**END_TO_END, steps=1, evaluate_every=9, encoder_rate=1e-3).run(run_of(model), tmp_path)
    assert not torch.equal(before, model.model.vision_tower.grid_encoder.pos_embed)


@torch.no_grad()
def test_end_to_end_sees_what_the_model_sees(fields: None) -> None:
    """One question about a page: the same patches and the same tokens as in the model's own prompt."""
    model = named_model().eval()
    side = model.config.vision_config.image_size
    stage = EndToEndStage(**{**END_TO_END, "questions": 1})
    task = EndToEnd(stage, run_of(model))
    asked = PageBatches(stage, run_of(model), "train").batch(0)[0].page
    seen_page = task.see(asked, oracle=False)
    core = model.model
    encoding = core.encode_image(asked.pixels, asked.patch_mask[None])
    image = model.config.image_token_id
    vision = [image] * (encoding.base_positions + 40)
    ids = torch.tensor([[*vision, *asked.ids[0].tolist()]])
    prompt = core.embed_images(ids, encoding, query_mask=(ids != image).long())
    assert side == asked.pixels.shape[-1]
    assert torch.equal(prompt.fetch.indices[0], seen_page.patches)
    own = torch.cat((seen_page.base, seen_page.fetched))
    assert torch.allclose(prompt.embeds[prompt.inputs["input_ids"] == image], own, atol=1e-6)


def test_end_to_end_asks_for_a_bridge_that_names_wordpieces(fields: None) -> None:
    with pytest.raises(ValueError, match='bridge_config.kind: expected "wordpieces"; got "linear"'):
        EndToEnd(EndToEndStage(**END_TO_END), run_of(tiny_model()))


def test_piece_loss_is_lower_for_the_right_direction() -> None:
    head, generator = RecognitionHead(4, 6).wordpieces, torch.Generator().manual_seed(0)
    table = torch.nn.functional.normalize(torch.randn(50, 6, generator=generator), dim=-1)
    pieces = torch.full((1, 2, PIECE_SLOTS), -1)
    pieces[0, 0, 0], pieces[0, 1] = 7, -2
    right = torch.zeros(1, 2, PIECE_SLOTS, 6)
    right[0, 0, 0] = table[7]
    losses = [float(piece_loss(head, way, pieces, table, generator).detach()) for way in (right, -right)]
    assert losses[0] < losses[1]


def test_a_recipe_leaves_an_adapter_that_peft_reads(fields: None, tmp_path: Path) -> None:
    """A start need not bring what other stages leave, and the answers of decoder and adapter are PEFT's own."""
    tiny_checkpoint(tmp_path / "start", bridge={"kind": "wordpieces", "places": 16})
    stage = {
        "stage": "question_answering", "pages": {"fields": 1.0}, "steps": 3, "pages_per_step": 2, "evaluate_every": 3,
        "evaluated": 3, "warmup": 0, "learning_rate": 5e-2, "workers": 0, "bf16": False, "rank": 4,
    }  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"model": "start", "start": "start", "stages": [stage]}))
    train(load_recipe(tmp_path / "recipe.yaml"), tmp_path / "out")
    out = tmp_path / "out" / "model"
    model = ArrCocForConditionalGeneration.from_pretrained(out)
    assert load_file(out / "learner.safetensors")["places.rows.weight"].equal(model.model.bridge.places.rows.weight)
    causal = AutoModelForCausalLM.from_config(model.config.text_config)
    causal.model.load_state_dict(model.model.language_model.state_dict())
    ids = torch.arange(8)[None]
    before = causal(ids).logits
    adapted = PeftModel.from_pretrained(causal, str(out / "language_adapter"))
    assert not torch.allclose(before, adapted(ids).logits, atol=1e-4)
    held = load_file(out / "language_adapter" / "adapter_model.safetensors")
    assert {name.replace(".default", "") for name in adapted.state_dict() if "lora_" in name} == set(held)
