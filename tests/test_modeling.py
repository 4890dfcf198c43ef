"""The whole model: forward, losses, gradients, saving and loading, placement, adapters."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import Asking, tokens_of, vision
from helpers import CARD, PAGE, QUESTION, loud_model, prompt, refuses, tiny_model, with_markers
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from torch import Tensor

from arr_coc import probes as probes_module
from arr_coc.model_summary import generated_image
from arr_coc.modeling.prompt import trim_placeholders
from arr_coc.probes import EXPECTED, Range, Statistics, set_probes
from benchmarks.path import trace


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


# ---- The model without its head, as trainers call it that bring a head of their own: it sees, it fetches, it learns
ADAPTERS = {
    "all linear layers": {"target_modules": "all-linear"},
    "attention": {"target_modules": ["q_proj", "v_proj", "query", "value"]},
}


def answered(model: Any, answer: str) -> tuple[dict[str, Any], Tensor]:
    """A question's batch with an answer behind the prompt, without a query_mask; the true mask of its question."""
    inputs = dict(prompt(model, (PAGE, QUESTION)))
    behind = model.processor.tokenizer(answer + "<|im_end|>", add_special_tokens=False, return_tensors="pt").input_ids
    question = torch.cat((inputs.pop("query_mask"), torch.zeros_like(behind).bool()), 1)
    inputs["input_ids"] = torch.cat((inputs["input_ids"], behind), 1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    return inputs, question


def questions_read(model: Any, inputs: dict[str, Any]) -> Tensor:
    """What the scorer read of the questions [I, L, D], padding 0."""
    output = model.model(**inputs)
    context = output.prompt.context
    return context.query * context.query_mask[..., None]


def loss_of(base: Any, head: Any, batch: dict[str, Any], labels: Tensor) -> Tensor:
    """Cross-entropy of a base model's hidden states through a head, as TRL's trainers compute it."""
    logits = head(base(**batch).last_hidden_state)[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())


@pytest.mark.parametrize("adapter", [None, *ADAPTERS])
def test_the_base_model_sees_the_image_and_teaches_the_scorer(adapter: str | None) -> None:
    """`pixel_values` went unread into **kwargs: black images gave the same loss, and the scorer got no gradient."""
    model = tiny_model().train()
    if adapter is not None:
        get_peft_model(model, LoraConfig(r=2, task_type="CAUSAL_LM", **ADAPTERS[adapter])).train()
    batch = dict(prompt(model, (PAGE, QUESTION), (CARD, "Who?")))
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    black = {**batch, "pixel_values": torch.full_like(batch["pixel_values"], -1.0)}
    loss = loss_of(model.base_model, model.lm_head, batch, labels)
    assert abs(loss - loss_of(model.base_model, model.lm_head, black, labels)) > 1e-3
    loss.backward()
    scorer = model.model.fetcher.scorers["realizer"]
    gradients = [weight.grad.norm() for weight in scorer.parameters() if weight.grad is not None]
    assert gradients and sum(gradients) > 0


@pytest.mark.parametrize("part", ["base model", "model"])
def test_an_unknown_argument_is_refused(part: str) -> None:
    model = tiny_model()
    batch = dict(prompt(model, (PAGE, QUESTION)))
    with pytest.raises(TypeError, match=r"expected its own arguments or the language model's; got \['image_siz"):
        (model.base_model if part == "base model" else model)(**batch, image_sizes=torch.ones(1, 2))


# ---- the question, where no mask of it comes
@torch.no_grad()
@pytest.mark.parametrize("came", ["no mask", "labels everywhere", "the prompt's mask"])
def test_answers_do_not_leak_into_the_question(came: str) -> None:
    """TRL's collators give the mask of the prompt alone, its other trainers none, and its heads keep the labels."""
    model = with_markers()
    read = []
    for answer in ("12.50", "a longer answer than that"):
        inputs, question = answered(model, answer)
        if came == "labels everywhere":
            inputs["labels"] = inputs["input_ids"]
        if came == "the prompt's mask":
            inputs["query_mask"] = prompt(model, (PAGE, QUESTION))["query_mask"]
        read.append(questions_read(model, inputs)[:, : int(question.sum())])
        expected = questions_read(model, {**inputs, "query_mask": question})
        assert torch.equal(read[-1], expected[:, : int(question.sum())])
        assert int(model.model(**inputs).prompt.context.query_mask.sum()) == int(question.sum())
    assert torch.equal(*read)


def test_a_mask_of_other_prompts_is_refused_even_with_markers() -> None:
    model = with_markers()
    inputs, _ = answered(model, "12.50")
    short = prompt(model, (PAGE, QUESTION))["query_mask"]
    for mask in (short.repeat(2, 1), torch.cat((short, short), 1)):
        refuses("query_mask: expected shape", model.model, **inputs, query_mask=mask)


# ---- Prompts: placeholders are trimmed to what is fetched of each item
IMAGE, PAD, BASE = 9, 7, 2


def padded(rows: list[list[int]], side: str) -> dict[str, torch.Tensor]:
    """Prompts as a rectangle: input_ids, attention_mask, labels, query_mask and position_ids [B, S]."""
    longest = max(map(len, rows))

    def fill(values: list[list[int]], pad: int) -> torch.Tensor:
        pads = [[pad] * (longest - len(row)) for row in values]
        return torch.tensor([p + v if side == "left" else v + p for p, v in zip(pads, values, strict=True)])

    return {
        "input_ids": fill(rows, PAD),
        "attention_mask": fill([[1] * len(row) for row in rows], 0),
        "labels": fill([[-100 if i < len(row) - 1 else token for i, token in enumerate(row)] for row in rows], -100),
        "query_mask": fill([[int(token not in (IMAGE, 1)) for token in row] for row in rows], 0),
        "position_ids": fill([list(range(len(row))) for row in rows], 0),
    }


def row(texts: list[list[int]], counts: list[int]) -> list[int]:
    """Text, image, text, image, ..., text: images of BASE and these many fetched tokens."""
    tokens = list(texts[0])
    for text, count in zip(texts[1:], counts, strict=True):
        tokens += [IMAGE] * (BASE + count) + text
    return tokens


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[list[int]]], list[list[int]], int]:
    """Texts of each prompt, the counts of its images, and K."""
    most = draw(st.integers(0, 5))
    counts = draw(st.lists(st.lists(st.integers(0, most), max_size=2), min_size=1, max_size=3).filter(any))
    text = st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4)
    return [[draw(text) for _ in range(len(some) + 1)] for some in counts], counts, most


@pytest.mark.parametrize("side", ["left", "right"])
@settings(deadline=None, max_examples=60)
@given(case=batches())
def test_trimming_gives_the_prompts_that_were_written_for_these_counts(
    side: str, case: tuple[list[list[list[int]]], list[list[int]], int]
) -> None:
    """Text, labels, mask and positions as if the processor had known the counts; images one after another included."""
    texts, counts, most = case
    full = [row(some, [most] * len(each)) for some, each in zip(texts, counts, strict=True)]
    wanted = [row(some, each) for some, each in zip(texts, counts, strict=True)]
    ids = {"image_token_id": IMAGE, "pad_token_id": PAD, "base_positions": BASE}
    trimmed = trim_placeholders(counts=torch.tensor(sum(counts, [])), **ids, **padded(full, side))
    expected = padded(wanted, side if len({*map(len, full)}) > 1 else "left")
    assert trimmed.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(trimmed[name], tensor), name


def test_a_hole_in_the_mask_stays_where_it_is() -> None:
    """[prefix][padding][question], as a kept prefix is continued: the padding in the middle is no edge."""
    ids, mask = torch.tensor([[9, 9, 9, 7, 2, 3]]), torch.tensor([[1, 1, 1, 0, 1, 1]])
    trimmed = trim_placeholders(ids, torch.tensor([0]), image_token_id=9, base_positions=2, attention_mask=mask)
    assert trimmed["input_ids"].tolist() == [[9, 9, 7, 2, 3]]
    assert trimmed["attention_mask"].tolist() == [[1, 1, 0, 1, 1]]
    with pytest.raises(ValueError, match=r"^labels: expected shape \[1, 4\], that of input_ids; got \[1, 3\]$"):
        ids, counts = torch.tensor([[9, 9, 9, 2]]), torch.tensor([0])
        trim_placeholders(ids, counts, image_token_id=9, base_positions=2, labels=torch.zeros(1, 3))


@pytest.mark.parametrize("counts", [[-1], [3]])
def test_counts_outside_the_placeholders_are_refused(counts: list[int]) -> None:
    ids = torch.tensor([[9, 9, 9, 9, 2]])
    with pytest.raises(ValueError, match=rf"^counts: expected 0 to 2 fetched tokens per image; got \[{counts[0]}\]$"):
        trim_placeholders(ids, torch.tensor(counts), image_token_id=9, base_positions=2)


# ---- Probes: what they see is what passes, and without them nothing is left behind
def ask(model: Any) -> Any:
    return model.generate(generated_image(128), "What is the total?", return_fetch=True, max_new_tokens=1)


def test_every_boundary_is_seen_and_what_is_out_of_range_is_said(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ask(model)
    probes = set_probes(model, True)
    answer = ask(model)
    assert answer.probability == plain.probability
    assert set(probes) == set(EXPECTED)
    relevance = Statistics.of(answer.fetch.relevance)
    assert probes["relevance"] == relevance and relevance.shape == (1, 256) and relevance.dtype == "float32"
    assert probes["grid encoder"].shape == (1, 16, 16, 16) and probes["bridge"].shape == (1, 17, 24)
    assert all(of.min <= of.mean <= of.max and of.within(EXPECTED[name]) for name, of in probes.items())
    set_probes(model, False)
    said: list[str] = []
    monkeypatch.setattr(probes_module.logger, "warning", said.append)
    monkeypatch.setitem(EXPECTED, "relevance", Range(2.0, 3.0))
    set_probes(model, True)
    ask(model)
    set_probes(model, False)
    assert [text.split(":")[0] for text in said] == ["relevance"]
    assert said[0].startswith("relevance: expected values in 2..3 with a standard deviation in 1e-05..1000; got ")


def test_without_probes_nothing_runs_that_did_not_before(model: Any) -> None:
    """The cost is none: the same functions are called as before there were probes, and no hook is left."""
    ask(model)
    before = trace(lambda: ask(model)).calls
    set_probes(model, True)
    set_probes(model, True)  # twice is once
    assert len(trace(lambda: ask(model)).calls) > len(before)
    assert set_probes(model, False) is None and model.probes is None
    assert trace(lambda: ask(model)).calls == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


# ---- torch.export and torch.compile without a break: with a stated budget and encoded images no data decides
@pytest.mark.parametrize("strategy", ["realizer", "clip_query", "none"])
@torch.no_grad()
@pytest.mark.versions
def test_an_exported_graph_gives_the_logits(strategy: str) -> None:
    """`int(per_row.sum())`, which counts placeholders, stopped it."""
    model = tiny_model()
    budget = 0 if strategy == "none" else model.config.fetcher_config.budget
    asking = Asking(model, model.model.encode_image(**vision(model)), strategy=strategy, budget=budget)
    first, *others = (tokens_of(model, [text, text], strategy) for text in ("What is it?", "Who was it?"))
    program = torch.export.export(asking, first).module()
    for inputs in (first, *others):
        assert torch.allclose(program(*inputs), asking(*inputs), atol=1e-5)
    assert not torch.allclose(asking(*first), asking(*others[0]), atol=1e-3)


@torch.no_grad()
def test_a_question_compiles_without_a_break() -> None:
    model = tiny_model()
    encoding = model.model.encode_image(**vision(model))
    asking = Asking(model, encoding, strategy="realizer", budget=model.config.fetcher_config.budget)
    inputs = tokens_of(model, ["What is it?", "Who?"])
    torch._dynamo.reset()
    compiled = torch.compile(asking, fullgraph=True, backend="eager")
    assert torch.allclose(compiled(*inputs), asking(*inputs), atol=1e-5)
    # As many patches as configured were fetched, and the first of them put in: other logits, and no error.
    model = tiny_model()
    inputs = {**prompt(model, (PAGE, "What is it?"), budget=3), "pixel_values": None, "patch_mask": None}
    inputs["image_encoding"] = model.encode_image(PAGE)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")
    assert torch.allclose(compiled(**inputs).logits, model(**inputs).logits, atol=1e-4)
