"""Layout "qwen3_vl" and deepstack: what a Qwen3-VL text model reads of places and depths, beside a slow reference."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs import BOTH, BRIDGES, TEXT, spatial_model
from helpers import CARD, LARGE_TEXT, PAGE, drawn, pixels_of, prompt, refuses, tiny_config
from lone import QUESTION
from torch import Tensor
from transformers import Qwen3VLConfig, Qwen3VLModel

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.evaluation.peers import PeerQuestion
from arr_coc.modeling.fetcher import FetchChoices, FetchResult
from arr_coc.modeling.image_encoding import ImageEncoding
from arr_coc.modeling.prompt import image_places, image_planes
from arr_coc.modeling.views import select_views
from arr_coc.publishing.building import export_language_model
from arr_coc.serving.engine import Engine
from arr_coc.serving.settings import ServerSettings
from arr_coc.serving.vllm_client import VllmClient

LEVELS = ("low", "mid", "high")


@pytest.fixture(scope="module")
def model() -> ArrCocForConditionalGeneration:
    return spatial_model()


# ---- the slow reference: loops over tokens, no batch, no cache
def reference_places(encoding: ImageEncoding, slot: int, patches: list[int]) -> list[tuple[float, float]]:
    """(y, x) of the tokens of one image, whose fetched ones are `patches`."""
    side = encoding.side
    if encoding.base_indices is None:
        rows = side // 4
        base = [(4 * (cell // rows) + 1.5, 4 * (cell % rows) + 1.5) for cell in range(encoding.semantic.shape[1])]
    else:
        base = [divmod(patch, side) for patch in encoding.base_indices[slot].tolist()]
    return [*base[: encoding.tokens.shape[1]], *(divmod(patch, side) for patch in patches)]


def reference_positions(ids: list[int], places: list[list[tuple[float, float]]], image: int, side: int) -> Tensor:
    """[3, S] of one prompt without padding."""
    position, rows, waiting, inside = 0.0, [], iter(places), iter(())
    for number, token in enumerate(ids):
        if token != image:
            rows.append((position, position, position))
            position += 1
            continue
        place = next(inside, None)
        if place is None:
            inside = iter(next(waiting))
            place = next(inside)
        rows.append((position, position + place[0], position + place[1]))
        if number + 1 == len(ids) or ids[number + 1] != image:
            position += side
    return torch.tensor(rows).T


def merged(model: Any, level: str, state: Tensor) -> Tensor:
    weights = model.model.deepstack.levels[level]
    normed = F.layer_norm(state, state.shape, weights.norm.weight, weights.norm.bias, 1e-6)
    return weights.fc2.weight @ F.gelu(weights.fc1.weight @ normed + weights.fc1.bias) + weights.fc2.bias


def reference_planes(
    model: Any, encoding: ImageEncoding, slot: int, patches: list[int], chosen: list[set[str]] | None = None
) -> Tensor:
    """[3, positions, D] of one image; `chosen`: the levels of each fetched patch."""
    grids = dict(zip(LEVELS, (*encoding.depths[slot], encoding.features[slot]), strict=True))  # type: ignore[misc]
    side, planes = encoding.side, []
    for level in LEVELS:
        rows = []
        if encoding.base_indices is None:
            for y, x in itertools.product(range(0, side, 4), repeat=2):
                rows.append(merged(model, level, grids[level][:, y : y + 4, x : x + 4].mean((1, 2))))
        else:
            rows += [merged(model, level, grids[level].flatten(1)[:, at]) for at in encoding.base_indices[slot]]
        rows = rows[: encoding.tokens.shape[1]]
        for number, patch in enumerate(patches):
            plane = merged(model, level, grids[level][:, patch // side, patch % side])
            rows.append(plane if chosen is None or level in chosen[number] else torch.zeros_like(plane))
        planes.append(torch.stack(rows))
    return torch.stack(planes)


@torch.no_grad()
def reference_logits(
    model: Any,
    encoding: ImageEncoding,
    ids: Tensor,
    fetch: FetchResult,
    slots: list[int],
    tokens: Tensor,
    chosen: list[set[str]] | None = None,
) -> Tensor:
    """Logits [S, vocabulary] of one prompt [S], not padded, which shows the images `slots` as `tokens` [I, n, D]."""
    image, config = model.config.image_token_id, model.config.bridge_config
    embeds = model.get_input_embeddings()(ids.masked_fill(ids == image, 0))
    embeds[ids == image] = tokens[slots].flatten(0, 1)
    patches = [fetch.indices[slot].tolist() for slot in slots]
    arguments: dict[str, Any] = {}
    if config.layout == "qwen3_vl":
        places = [reference_places(encoding, slot, own) for slot, own in zip(slots, patches, strict=True)]
        arguments["position_ids"] = reference_positions(ids.tolist(), places, image, encoding.side)[:, None]
    if config.deepstack:
        planes = [reference_planes(model, encoding, slot, at, chosen) for slot, at in zip(slots, patches, strict=True)]
        arguments["visual_pos_masks"] = (ids == image)[None]
        arguments["deepstack_visual_embeds"] = list(torch.cat(planes, 1))
    hidden = model.model.language_model(inputs_embeds=embeds[None], use_cache=False, **arguments).last_hidden_state
    return model.lm_head(hidden)[0]


@pytest.mark.parametrize("compressor", ["conv", "mask"])
@pytest.mark.parametrize("bridge", BRIDGES)
@pytest.mark.parametrize("budget", ["all", 9])
@torch.no_grad()
def test_logits_are_those_of_the_slow_reference(bridge: str, compressor: str, budget: Any) -> None:
    """A padded batch of two prompts, each with its image, all patches kept or some, beside single prompts by hand."""
    model = spatial_model(BRIDGES[bridge], vision={"compressor": compressor}, fetcher={"overlap": "allow"})
    inputs = prompt(model, (PAGE, "What is the total of it?"), (CARD, "Who?"), budget=budget)
    out = model(**inputs)
    encoding = model.model.encode_image(**pixels_of(inputs))
    assert not inputs["attention_mask"].all()
    for row, ids in enumerate(inputs["input_ids"]):
        inside = inputs["attention_mask"][row].bool()
        expected = reference_logits(model, encoding, ids[inside], out.fetch, [row], out.image_tokens)
        assert torch.allclose(out.logits[row][inside], expected, atol=1e-5)
    if budget == "all":
        assert torch.equal(out.fetch.indices[0], torch.arange(256))


@torch.no_grad()
def test_all_patches_in_order_stand_where_qwen3_vl_puts_them(model: Any) -> None:
    """transformers' `get_rope_index` says the positions of the same prompt, of a grid of the same rows and columns."""
    side = 16
    upstream = Qwen3VLModel(
        Qwen3VLConfig(
            text_config={**model.config.text_config.to_dict()},
            vision_config=(
                {"depth": 1, "hidden_size": 8, "num_heads": 2, "intermediate_size": 8, "spatial_merge_size": 1}
                | {"num_position_embeddings": 16, "out_hidden_size": 24, "deepstack_visual_indexes": [0]}
            ),
            image_token_id=model.config.image_token_id,
        )
    ).eval()
    inputs = prompt(model, (PAGE, "What is the total of it?"), (CARD, "Who?"), budget="all")
    ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
    encoding = model.model.encode_image(**pixels_of(inputs)).without_base()
    image = model.config.image_token_id
    bare = []
    for row, own in enumerate(ids):  # without the placeholders of base tokens
        kept = torch.ones_like(own, dtype=torch.bool)
        kept[(own == image).nonzero()[:16]] = False
        bare.append((own[kept], mask[row][kept]))
    ids, mask = (torch.stack(part) for part in zip(*bare, strict=True))
    placed = model.model.embed_images(ids, encoding, attention_mask=mask.long())
    found, _ = upstream.get_rope_index(
        ids, (ids == image).int(), torch.tensor([[1, side, side]] * 2), attention_mask=mask.long()
    )
    positions, added = placed.read["position_ids"], placed.read["prompt_planes"]
    assert positions.dtype == torch.float32 and torch.equal(positions[:, mask], found[:, mask].float())
    upstream.language_model.load_state_dict(model.model.language_model.state_dict())
    planes = [added[ids == image, level] for level in range(3)]
    text = upstream.language_model(
        inputs_embeds=placed.embeds,
        attention_mask=mask,
        position_ids=found,
        visual_pos_masks=ids == image,
        deepstack_visual_embeds=planes,
        use_cache=False,
    )
    logits = model(input_ids=ids, attention_mask=mask, image_encoding=encoding).logits
    assert torch.allclose(logits[mask], model.lm_head(text.last_hidden_state)[mask], atol=1e-5)


@torch.no_grad()
def test_several_images_of_a_prompt_and_another_side(model: Any) -> None:
    """Each image begins where the text before it ended; its grid may be smaller than the configured one."""
    inputs = prompt(model, ([CARD, PAGE], "Which is it?"), budget=5)
    pixels = F.interpolate(inputs["pixel_values"], (96, 96))
    base, image = 9, model.config.image_token_id
    ids = inputs["input_ids"][0]
    first = int((ids == image).nonzero()[0])
    behind = int((ids == image).nonzero()[-1]) + 1
    slot = torch.full((base + 5,), image)
    prompts = torch.cat((ids[:first], slot, ids[:3], slot, ids[behind:]))
    encoding = model.model.encode_image(pixels)
    out = model(input_ids=prompts[None], image_encoding=encoding)
    assert encoding.side == 12 and out.fetch.indices.shape == (2, 5)
    expected = reference_logits(model, encoding, prompts, out.fetch, [0, 1], out.image_tokens)
    assert torch.allclose(out.logits[0], expected, atol=1e-5)


# ---- which depths fetched tokens get
@torch.no_grad()
def test_the_hierarchical_scorers_levels_choose_the_depths_of_fetched_tokens() -> None:
    fetcher = {"scorers": ["hierarchical"], "strategy": "hierarchical"}
    model = spatial_model(fetcher=fetcher, seed=3)
    inputs = prompt(model, (PAGE, "What is the total of it?"), budget=120)
    encoding = model.model.encode_image(**pixels_of(inputs))
    query = inputs["query_mask"].bool()
    selected = model.model.select_slots(inputs["input_ids"], encoding, query_mask=query)
    fetched = model.model.fetch(selected)
    scorer = model.model.fetcher.scorers["hierarchical"]
    maps = scorer.maps(selected.context)
    weighted = (maps * scorer.weights(maps, selected.context)[..., None])[0]  # [3, N]
    chosen = []
    for patch in fetched.indices[0].tolist():
        mean = float(weighted[:, patch].mean())
        chosen.append({level for number, level in enumerate(LEVELS) if float(weighted[number, patch]) >= mean})
    assert {len(own) for own in chosen} == {1, 2}
    placed = model.model.place(selected, fetched)
    expected = reference_planes(model, encoding, 0, fetched.indices[0].tolist(), chosen)
    image = selected.input_ids[0] == model.config.image_token_id
    planes = placed.read["prompt_planes"][0]
    assert torch.allclose(planes[image].movedim(1, 0), expected, atol=1e-5) and not planes[~image].any()
    out = model(**inputs)
    reference = reference_logits(model, encoding, inputs["input_ids"][0], out.fetch, [0], out.image_tokens, chosen)
    assert torch.allclose(out.logits[0], reference, atol=1e-5)
    assert not torch.allclose(
        out.logits[0, -1],
        reference_logits(model, encoding, inputs["input_ids"][0], out.fetch, [0], out.image_tokens)[-1],
        atol=1e-3,
    )


@torch.no_grad()
def test_regions_stand_at_their_middle_with_their_mean_depths(model: Any) -> None:
    inputs = prompt(model, (PAGE, QUESTION), budget=12)
    encoding = model.model.encode_image(**pixels_of(inputs))
    selected = model.model.select_slots(inputs["input_ids"], encoding, query_mask=inputs["query_mask"].bool())
    fetched = model.model.fetcher(selected.context, 12, FetchChoices(allocator="knapsack"))
    places = image_places(encoding, fetched)[0, 16:]
    planes = image_planes(model.model, encoding, fetched, selected.context)[0, 16:]
    regions = fetched.regions()[0].tolist()
    assert len({y1 - y0 for y0, _, y1, _ in regions}) > 1
    for number, (y0, x0, y1, x1) in enumerate(regions):
        assert places[number].tolist() == [(y0 + y1 - 1) / 2, (x0 + x1 - 1) / 2]
        state = encoding.depths[0, 1, :, y0:y1, x0:x1].mean((1, 2))  # type: ignore[index]
        assert torch.allclose(planes[number, 1], merged(model, "mid", state), atol=1e-5)


@torch.no_grad()
def test_patches_of_tiles_stand_where_the_overview_shows_them_with_their_own_depths() -> None:
    model = spatial_model(text=LARGE_TEXT)
    page = drawn(500, 700)
    encoding = model.encode_image(page, tiles=4)
    answer = model.generate(encoding, QUESTION, budget=30, return_fetch=True, max_new_tokens=1)
    fetch = answer.fetch
    assert int(fetch.view.max()) > 0
    side, (x0, y0, x1, _) = 16, fetch.seen.views.windows[0].tolist()
    for at, box in zip(fetch.centres()[0].tolist(), fetch.boxes()[0].tolist(), strict=True):
        middle = [(box[1] + box[3]) / 2 - y0, (box[0] + box[2]) / 2 - x0]  # px of the overview's square
        assert at == pytest.approx([number * side / (x1 - x0) - 0.5 for number in middle], abs=1e-3)
    overview = (fetch.view[0] == 0).nonzero()[:, 0]
    for number in overview.tolist():
        assert fetch.centres()[0, number].tolist() == pytest.approx(fetch.positions[0, number].tolist(), abs=1e-3)

    asked = model.model.select_slots(**question_of(model, encoding, 30))
    selected = select_views(model.model, asked, encoding, None)
    fetched = model.model.fetch(selected)
    planes = image_planes(model.model, encoding, fetched, selected.context)
    for number, (view, patch) in enumerate(zip(fetched.view[0].tolist(), fetched.indices[0].tolist(), strict=True)):
        holder = encoding if view == 0 else encoding.tiles
        state = holder.depths[0 if view == 0 else view - 1, 0, :, patch // 16, patch % 16].float()  # type: ignore[union-attr, index]
        assert torch.allclose(planes[0, 16 + number, 0], merged(model, "low", state), atol=1e-5)


def question_of(model: Any, encoding: ImageEncoding, budget: int) -> dict[str, Any]:
    written = model.processor.prompts([QUESTION], images=[1], placeholders=encoding.base_positions + budget)
    return {"input_ids": written["input_ids"], "query_mask": written["query_mask"].bool(), "encoding": encoding}


@pytest.mark.parametrize("bridge", [{"layout": "rows"}, {"layout": "indicators", "kind": "vet", "table_size": 40}])
@torch.no_grad()
def test_what_a_layout_puts_around_an_image_gets_no_planes(bridge: dict[str, Any]) -> None:
    model = spatial_model({**bridge, "deepstack": True})
    inputs = prompt(model, (PAGE, QUESTION), budget=9)
    out = model.model(**inputs)
    planes = out.prompt.read["prompt_planes"][0, out.prompt.inputs["input_ids"][0] == model.config.image_token_id]
    encoding = model.model.encode_image(**pixels_of(inputs))
    base = model.model.layout.base_places(16)
    fetched = encoding.tokens.shape[1] + torch.arange(9)
    expected = reference_planes(model, encoding, 0, out.fetch.indices[0].tolist())
    assert torch.allclose(planes[torch.cat((base, fetched))].movedim(1, 0), expected, atol=1e-5)
    assert planes.flatten(1).any(1).sum() == 16 + 9 < len(planes)


# ---- decoding
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 3, "num_return_sequences": 1},
    "attention": {"strategy": "attention"},
    "chosen number": {"budget": "auto"},
}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("bridge", BRIDGES)
def test_cached_answers_are_uncached_ones_and_a_batchs_those_of_single_questions(bridge: str, settings: str) -> None:
    """Also with the prefix of an encoded image, which is read once for questions of different lengths."""
    model = spatial_model(BRIDGES[bridge])
    questions, chosen = ["What is the total of all?", "Who?"], {"max_new_tokens": 8, **SETTINGS[settings]}
    encoding = model.encode_image(PAGE)
    assert encoding.prefix_cache is not None
    alone = [model.generate(PAGE, question, **chosen) for question in questions]
    assert model.generate(encoding, questions, **chosen) == alone
    assert model.generate([PAGE, PAGE], questions, **chosen) == alone
    assert model.generate([PAGE, PAGE], questions, use_cache=False, **chosen) == alone
    assert len(set(alone)) == 2 and model.generate(CARD, questions[0], **chosen) != alone[0]


@torch.no_grad()
def test_a_cache_by_hand_needs_positions(model: Any) -> None:
    inputs = prompt(model, (PAGE, QUESTION))
    whole = model.model(**inputs)
    length = inputs["input_ids"].shape[1]
    begun = model(**inputs, use_cache=True)
    token = torch.tensor([[65]])
    with pytest.raises(ValueError, match=rf"^position_ids: expected them \[3, B, S\] behind the {length} tokens"):
        model(input_ids=token, cache=begun.cache)
    place = whole.prompt.read["position_ids"][:, :, -1:] + 1
    step = model(input_ids=token, cache=begun.cache, position_ids=place).logits[0, -1]
    longer = {**inputs, "input_ids": torch.cat((inputs["input_ids"], token), 1)}
    longer |= {
        name: F.pad(inputs[name], (0, 1), value=value) for name, value in (("attention_mask", 1), ("query_mask", 0))
    }
    assert torch.allclose(model(**longer).logits[0, -1], step, atol=1e-4)


@pytest.mark.parametrize("strategy", ["realizer", "saliency"])
def test_later_passes_put_their_tokens_in_place(model: Any, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the prompt of the second pass has the places and planes of all that was fetched, in that order."""
    read: list[dict[str, Tensor]] = []
    generate = model.generate_tokens
    monkeypatch.setattr(model, "generate_tokens", lambda **given: read.append({**given}) or generate(**given))
    answer = model.generate(PAGE, QUESTION, strategy=strategy, num_passes=2, return_fetch=True, max_new_tokens=3)
    first, second = (each.fetch for each in answer.passes)
    last, encoding = read[-1], model.model.encode_image(**pixels_of(prompt(model, (PAGE, QUESTION))))
    patches = [*first.indices[0].tolist(), *second.indices[0].tolist()]
    image, ids = model.config.image_token_id, last["input_ids"][0]
    places = reference_places(encoding, 0, patches)
    assert torch.equal(last["position_ids"][:, 0], reference_positions(ids.tolist(), [places], image, 16))
    expected = reference_planes(model, encoding, 0, patches)
    assert torch.allclose(last["prompt_planes"][0, ids == image].movedim(1, 0), expected, atol=1e-4)
    monkeypatch.undo()
    uncached = model.generate(PAGE, QUESTION, strategy=strategy, num_passes=2, max_new_tokens=3, use_cache=False)
    assert uncached == answer.text


# ---- models without, and what is refused
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bridge": {"layout": "qwen3_vl"}}, "for layout \"qwen3_vl\"; got 'qwen3'"),
        ({"bridge": {"deepstack": True}}, "for deepstack; got 'qwen3'"),
        ({"bridge": {"deepstack": 1}}, "deepstack: expected bool; got 1"),
        ({"bridge": BOTH, "text": {**TEXT, "num_hidden_layers": 2}}, "at least 3 for deepstack"),
    ],
)
def test_a_config_that_cannot_read_them_is_refused(changes: dict[str, Any], message: str) -> None:
    refuses(message, tiny_config, **changes)


@pytest.mark.parametrize("bridge", BRIDGES)
def test_whoever_reads_embeddings_alone_refuses_them(bridge: str, tmp_path: Path) -> None:
    """The answers would be those of a model that sees other places, and nothing would say so."""
    model = spatial_model(BRIDGES[bridge])
    encoding = model.encode_image(PAGE)
    for begin in (
        lambda: Engine(model, ServerSettings()),
        lambda: VllmClient(model, None),
        lambda: export_language_model(model, tmp_path / "out"),
        lambda: PeerQuestion(model, encoding, QUESTION),
    ):
        refuses(r": expected a model whose prompts are embeddings alone .*; got layout", begin)
    assert not list(tmp_path.iterdir())


def test_positions_of_the_callers_are_refused_beside_images(model: Any) -> None:
    inputs = prompt(model, (PAGE, QUESTION))
    positions = torch.arange(inputs["input_ids"].shape[1])[None]
    with pytest.raises(ValueError, match=r"^position_ids: expected none beside images with layout 'qwen3_vl'"):
        model(**inputs, position_ids=positions)
    refuses(r"^position_ids: expected none beside images", model.generate, **inputs, position_ids=positions)
    words = model(input_ids=torch.arange(65, 75)[None], position_ids=torch.arange(10)[None]).logits
    assert torch.equal(words, model(input_ids=torch.arange(65, 75)[None]).logits)
