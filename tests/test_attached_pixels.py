"""Running back to the pixels of a published model's images: a small copy first, then the patches that are asked for."""

import pytest
import torch
from attached_models import QUESTIONS, TALL, WHOLE, WIDE, logits_of, picture, plain, published

import arr_coc
from arr_coc.attached.families import FAMILIES
from arr_coc.attached.reader import AttachedReader

ABLE = ["qwen3_vl", "qwen3_vl_moe"]


@pytest.fixture(params=ABLE)
def reader(request: pytest.FixtureRequest) -> AttachedReader:
    return arr_coc.attach(*published(request.param))


def test_the_list_is_of_those_that_can() -> None:
    assert sorted(name for name, kind in FAMILIES.items() if kind.encodes_cells) == ABLE


@pytest.mark.parametrize("images", [[WIDE], [TALL], [WIDE, TALL]], ids=["wide", "tall", "both"])
def test_with_all_tokens_it_is_the_plain_model(reader: AttachedReader, images: list) -> None:
    (answer,) = reader.generate([images], "What?", budget=1.0, way="pixels", **WHOLE)
    expected = plain(reader.model.config.model_type, [images], ["What?"])
    for ours, theirs in zip(answer.output.logits, expected.logits, strict=True):
        assert torch.equal(ours, theirs)


def test_the_base_is_a_small_copy_at_its_cells_places(reader: AttachedReader) -> None:
    image = picture(256, 320)  # 8 x 10 tokens of 32 px
    (prompt,) = reader.encode_image(image, way="pixels", prefix=False).prompts
    assert prompt.tokens is None and prompt.base_grids == [(2, 3)] and len(prompt) == 80
    small = reader.processor.image_processor(image.resize((96, 64), 3), do_resize=False, return_tensors="pt")
    with torch.no_grad():
        seen = reader.model.base_model.get_image_features(**small)
    torch.testing.assert_close(prompt.base, seen.pooler_output[0])
    torch.testing.assert_close(prompt.base_planes[2], seen.deepstack_features[2][0])
    asked = reader.writer.plain(prompt, "What?")
    placed = reader.runner.place(prompt, asked, torch.tensor([0, 79]))
    base, fetched = placed.positions[:, placed.kinds == 1], placed.positions[:, placed.kinds == 2]
    first = asked.positions[:, asked.is_image][:, :1]
    assert (base - first).tolist() == [[0.0] * 6, [1.5, 1.5, 1.5, 5.5, 5.5, 5.5], [1.5, 5.0, 8.0, 1.5, 5.0, 8.0]]
    assert (fetched - first).tolist() == [[0.0, 0.0], [0.0, 7.0], [0.0, 9.0]]


@torch.no_grad()
def test_cells_are_encoded_at_their_places(reader: AttachedReader) -> None:
    """Against the whole tower, in which attention is masked by hand to the patches of the cells of each image."""
    images = [picture(256, 320), picture(128, 192, seed=1)]  # 80 and 24 tokens
    (prompt,) = reader.encode_image([images], way="pixels", prefix=False).prompts
    cells = torch.tensor([3, 40, 41, 79, 80, 99])
    tokens, planes = reader.runner._encode_cells(prompt, cells)
    tower = reader.model.base_model.visual
    rows = (cells[:, None] * 4 + torch.arange(4)).flatten()
    kept = torch.zeros(len(prompt.pixels["pixel_values"]), dtype=torch.bool).index_fill(0, rows, True)
    real = torch.nn.functional.scaled_dot_product_attention

    def masked(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **kwargs: object) -> torch.Tensor:
        own = kept[:320] if query.shape[2] == 320 else kept[320:]
        return real(query, key, value, own[None, None, None].expand(-1, -1, query.shape[2], -1), scale=kwargs["scale"])

    try:
        torch.nn.functional.scaled_dot_product_attention = masked
        whole = tower(prompt.pixels["pixel_values"], grid_thw=prompt.pixels["image_grid_thw"])
    finally:
        torch.nn.functional.scaled_dot_product_attention = real
    torch.testing.assert_close(tokens, whole.pooler_output[cells], atol=1e-5, rtol=1e-5)
    for plane, expected in zip(planes, whole.deepstack_features, strict=True):
        torch.testing.assert_close(plane, expected[cells], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("strategy", ["attention", "similarity", "saliency"])
def test_questions_share_the_small_copy(reader: AttachedReader, strategy: str) -> None:
    options = {"budget": 0.5, "strategy": strategy, **WHOLE}
    page = reader.encode_image(WIDE, way="pixels")
    both = reader.generate(page, QUESTIONS, **options)
    for row, question in enumerate(QUESTIONS):
        cold = reader.generate(reader.encode_image(WIDE, way="pixels", prefix=False), question, **options)
        assert torch.equal(both[row].fetch.indices, cold.fetch.indices)
        assert len(cold.fetch.indices[0]) == round(len(page.prompts[0]) / 2) - cold.fetch.base
        torch.testing.assert_close(logits_of(both)[row], logits_of([cold])[0], atol=2e-5, rtol=1e-5)


def test_the_tower_encodes_no_more_than_asked(reader: AttachedReader) -> None:
    patches: list[int] = []
    hook = reader.model.base_model.visual.register_forward_pre_hook(lambda module, args: patches.append(len(args[0])))
    try:
        page = reader.encode_image(picture(256, 320), way="pixels")
        reader.generate(page, "What?", budget=5, strategy="saliency")
    finally:
        hook.remove()
    assert patches == [6 * 4, 5 * 4]


def test_other_families_are_refused() -> None:
    other = arr_coc.attach(*published("qwen2_5_vl"))
    message = 'way "pixels": expected a model of type qwen3_vl, qwen3_vl_moe; got qwen2_5_vl'
    with pytest.raises(ValueError, match=message):
        other.generate(WIDE, "What?", way="pixels")


def test_other_ways_are_refused(reader: AttachedReader) -> None:
    with pytest.raises(ValueError, match="way: expected one of tokens, pixels; got 'tiles'"):
        reader.encode_image(WIDE, way="tiles")
    with pytest.raises(ValueError, match='way "pixels": expected a pool above 0'):
        reader.encode_image(WIDE, way="pixels", pool=0)
