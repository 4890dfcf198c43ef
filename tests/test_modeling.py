"""The whole model: forward, losses, gradients, saving and loading, placement, adapters."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload, disk_offload
from helpers import CARD, PAGE, QUESTION, loud_model, prompt, refuses, tiny_model

from arr_coc import ArrCocForConditionalGeneration


@pytest.fixture(scope="module")
def saved(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loud")
    model.save_pretrained(folder)
    model.processor.save_pretrained(folder)
    return folder


# ---- forward
@torch.no_grad()
def test_the_output_says_what_happened_and_no_scores_are_computed_twice(model: Any) -> None:
    inputs = prompt(model, (PAGE, QUESTION), (CARD, "Who?"))
    output = model(**inputs)
    base, num_fetched = model.config.vision_tokens()
    assert output.logits.shape == (*inputs.input_ids.shape, model.config.text_config.vocab_size)
    assert output.image_tokens.shape == (2, base + num_fetched, model.config.text_config.hidden_size)
    assert output.fetch.indices.shape == (2, num_fetched) and output.fetch.strategy == "realizer"
    assert output.loss is None and output.relevance_loss is None
    assert isinstance(model(**inputs, return_dict=False), tuple)

    inputs = prompt(model, (PAGE, QUESTION))
    calls: list[str] = []
    scorers = model.model.fetcher.scorers.items()
    hooks = [kind.register_forward_hook(lambda *_, name=name: calls.append(name)) for name, kind in scorers]
    output = model(**inputs, relevance_targets=torch.zeros(1, 256), choices={"all_scores": True})
    for hook in hooks:
        hook.remove()
    assert sorted(calls) == sorted(output.scores) == ["clip_query", "realizer"]


def test_gradient_checkpointing_recomputes_every_layer_and_gives_the_same_gradients() -> None:
    """Of all three transformers. Reentrant, too, where keys and values in a tuple had none."""
    gradients, counts = [], []
    for reentrant in (None, False, True):
        model = loud_model().train()
        if reentrant is not None:
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
        core, runs = model.model, Counter[str]()
        parts = {"grid": core.vision_tower.grid_encoder, "semantic": core.vision_tower.semantic_encoder}
        for name, part in {**parts, "language": core.language_model}.items():
            for layer in part.layers:
                inner = next(module for module in layer.modules() if isinstance(module, torch.nn.Linear))
                inner.register_forward_hook(lambda *_, name=name, runs=runs: runs.update([name]))
        inputs = prompt(model, (PAGE, QUESTION))
        labels = inputs.input_ids.masked_fill(inputs.query_mask.bool(), -100)
        relevant = torch.zeros(1, model.config.vision_config.num_patches)
        relevant[0, 40:44] = 1.0
        model(**inputs, labels=labels, relevance_targets=relevant, use_cache=False).loss.backward()
        gradients.append({n: p.grad for n, p in model.named_parameters()})
        counts.append(runs)
    assert len(counts[0]) == 3 and counts[1] == counts[2] == {name: 2 * runs for name, runs in counts[0].items()}
    for name, gradient in gradients[0].items():
        assert all(torch.allclose(gradient, other[name], atol=1e-5) for other in gradients[1:]), name


@torch.no_grad()
def test_eager_attention_gives_the_logits_of_sdpa(saved: Path, model: Any) -> None:
    inputs = prompt(model, (PAGE, QUESTION))
    found = {}
    for kind in ("eager", "sdpa"):
        again = ArrCocForConditionalGeneration.from_pretrained(saved, attn_implementation=kind)
        assert again.model.language_model.config._attn_implementation == kind
        assert again.config.semantic_config._attn_implementation == kind
        found[kind] = again(**inputs).logits
    assert torch.allclose(found["eager"], found["sdpa"], atol=1e-4, rtol=1e-5)


def but(**changes: Any) -> Callable[[Any, Any], Any]:
    """A call with a prompt of which some inputs are others, or None."""
    return lambda m, i: m(**{**i, **changes})


# what went wrong -> (call, what the message says)
BAD_FORWARD: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "no prompt": (but(input_ids=None), "input_ids: expected exactly one of them and inputs_embeds"),
    "placeholders without images": (lambda m, i: m(input_ids=i.input_ids), "image placeholders: expected images"),
    "images without placeholders": (
        lambda m, i: m(input_ids=i.input_ids[:, -5:], pixel_values=i.pixel_values),
        "image placeholders: expected 1 images of .* got .0. placeholders",
    ),
    "two images for one": (but(pixel_values=torch.zeros(2, 3, 128, 128), patch_mask=None), "expected 2 images"),
    "not square": (lambda m, i: m(**{**i, "pixel_values": i.pixel_values[..., :64]}), "expected square .*128 x 64"),
    "side": (lambda m, i: m(**{**i, "pixel_values": i.pixel_values[..., :40, :40]}), "multiple of 32 px; got 40 x 40"),
    "channels": (lambda m, i: m(**{**i, "pixel_values": i.pixel_values[:, :1]}), r"got shape \[1, 1, 128, 128\]"),
    "one image, no batch": (lambda m, i: m(**{**i, "pixel_values": i.pixel_values[0]}), r"got shape \[3, 128, 128\]"),
    "patch_mask": (lambda m, i: m(**{**i, "patch_mask": i.patch_mask[:, 1:]}), r"patch_mask: .* got \[1, 255\]"),
    "strategy": (but(choices={"strategy": "telepathy"}), "strategy: expected one of .*; got 'telepathy'"),
    "allocator": (but(choices={"allocator": "greedy"}), "allocator: expected one of adaptive, .*, window; got"),
    "oracle without boxes": (but(choices={"strategy": "oracle"}), "expected boxes .*; got none"),
    "none with fetched tokens": (but(choices={"strategy": "none"}), "none"),
    "relevance of another grid": (but(relevance_targets=torch.rand(1, 7)), "relevance_targets.*expected.*256.*got.*7"),
    "oracle of another grid": (
        but(choices={"strategy": "oracle", "relevance": torch.rand(1, 7)}),
        "relevance_targets.*expected.*256.*got.*7",
    ),
    "query_mask of another prompt": (
        lambda m, i: but(query_mask=i.query_mask[:, 5:])(m, i),
        "query_mask.*expected.*got",
    ),
    "image_index": (but(image_index=torch.tensor([3])), "image_index.*expected.*got.*3"),
    "embeddings and images": (but(input_ids=None, inputs_embeds=torch.zeros(1, 3, 24)), "pixel_values|inputs_embeds"),
    "pixels and an encoding": (
        lambda m, i: m(**i, image_encoding=m.model.encode_image(i.pixel_values)),
        "image_encoding.*pixel_values|pixel_values.*image_encoding",
    ),
}


@pytest.mark.parametrize("case", BAD_FORWARD)
def test_bad_input_to_forward_is_one_line_of_expected_and_got(model: Any, case: str) -> None:
    call, message = BAD_FORWARD[case]
    refuses(message, call, model, prompt(model, (PAGE, QUESTION)))


def test_more_fetched_tokens_than_patches_and_targets_without_a_scorer_are_refused(model: Any) -> None:
    inputs = prompt(model, (PAGE, QUESTION))
    patches, placeholder = model.config.vision_config.num_patches, model.config.image_token_id
    more = torch.full((1, patches), placeholder)
    ids = torch.cat((more, inputs.input_ids), 1)
    refuses(f"budget: expected at most {patches} patches", model, input_ids=ids, pixel_values=inputs.pixel_values)
    # They were dropped without a word, so a run trained nothing.
    model = tiny_model(fetcher={"scorers": [], "strategy": "saliency"})
    inputs = prompt(model, (PAGE, QUESTION))
    with pytest.raises(ValueError, match="relevance_targets: expected a model with trained scorers"):
        model(**inputs, relevance_targets=torch.zeros(1, model.config.vision_config.num_patches))


# ---- placement
@pytest.mark.parametrize("where", ["disk", "cpu"])
@pytest.mark.versions
def test_a_wholly_offloaded_model_gives_the_same_answers(saved: Path, model: Any, tmp_path: Path, where: str) -> None:
    """With every parameter on the meta device the images were sent there: "Cannot copy out of meta tensor"."""
    again = ArrCocForConditionalGeneration.from_pretrained(saved).eval()
    device = torch.device("cpu")
    again = disk_offload(again, tmp_path, device) if where == "disk" else cpu_offload(again, device)
    inputs = prompt(model, (PAGE, QUESTION))
    assert torch.equal(again.generate(**inputs), model.generate(**inputs))
    assert again.generate(PAGE, QUESTION) == model.generate(PAGE, QUESTION)
    images, questions = [PAGE, CARD], ["Who?", "total price"]
    assert again.generate(images, questions) == model.generate(images, questions)
