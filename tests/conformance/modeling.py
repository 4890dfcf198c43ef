"""transformers' tests of models, over every combination of parts, with images and with text alone."""

import tempfile
import unittest
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

import torch
from absent_modules import GenerationTesterMixin
from combinations import COMBINATIONS, IMAGE_TOKEN_ID, small_config
from transformers import set_seed
from transformers_tests import test_modeling_common
from transformers_tests.test_configuration_common import ConfigTester

from arr_coc import ArrCocConfig, ArrCocForConditionalGeneration, ArrCocModel
from arr_coc.modeling.budgets import resolve_budget

BATCH, WORDS = 7, 6  # prompts (the number that the attention tests take), words of a question

random_ids = test_modeling_common.ids_tensor


class ArrCocModelTester:
    """What the tests ask of a model's author: a small config, inputs for it, and a few sizes."""

    is_training = True
    batch_size = BATCH

    def __init__(self, combination: str, *, images: bool) -> None:
        self.combination, self.images = combination, images
        config = self.get_config()
        self.text_config, self.vision_config = config.text_config, config.vision_config
        self.hidden_size = config.text_config.hidden_size
        self.num_hidden_layers = config.text_config.num_hidden_layers
        self.num_attention_heads = config.text_config.num_attention_heads
        self.placeholders = sum(config.vision_tokens()) if images else 0
        self.seq_length = self.encoder_seq_length = self.placeholders + WORDS
        if images and combination == "tiers":  # for so short a question the first tier, and the rest is cut
            first_tier = resolve_budget("tier:64", config.vision_config.num_patches)
            self.encoder_seq_length -= config.vision_tokens()[1] - first_tier

    def get_config(self) -> ArrCocConfig:
        return small_config(self.combination)

    def prepare_config_and_inputs_for_common(self) -> tuple[ArrCocConfig, dict[str, torch.Tensor]]:
        """The config and one prompt per row: the image's placeholders, then words."""
        config = self.get_config()
        words = torch.randint(IMAGE_TOKEN_ID + 1, 200, (BATCH, WORDS))
        placeholders = torch.full((BATCH, self.placeholders), config.image_token_id)
        input_ids = torch.cat((placeholders, words), 1)
        inputs = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
        if self.images:
            side = config.vision_config.image_size
            inputs["pixel_values"] = torch.rand(BATCH, config.vision_config.num_channels, side, side) * 2 - 1
        return config, inputs


def ids_of_words(shape: list[int], vocab_size: int) -> torch.Tensor:
    """Random ids, none of them the placeholder: one without an image is refused."""
    ids = random_ids(shape, vocab_size)
    return ids.masked_fill(ids == IMAGE_TOKEN_ID, 0)


class ArrCocTests(test_modeling_common.ModelTesterMixin, GenerationTesterMixin):
    """The tests; subclasses say of which combination, and whether with images."""

    combination: str
    images: bool
    all_model_classes = (ArrCocModel, ArrCocForConditionalGeneration)
    _is_composite = True
    additional_model_inputs = ["pixel_values"]

    def setUp(self) -> None:
        set_seed(0)
        words = patch.object(test_modeling_common, "ids_tensor", ids_of_words)
        words.start()
        self.addCleanup(words.stop)
        self.model_tester = ArrCocModelTester(self.combination, images=self.images)
        self.config_tester = ConfigTester(self, config_class=ArrCocConfig, has_text_modality=False)

    def _prepare_for_class(self, inputs: dict[str, Any], model_class: type, return_labels: bool = False) -> Any:
        """With labels go relevance targets: by both losses together every weight of the model learns."""
        inputs = super()._prepare_for_class(inputs, model_class, return_labels)
        if "labels" in inputs and self.images:
            patches = small_config(self.combination).vision_config.num_patches
            inputs["relevance_targets"] = torch.zeros(BATCH, patches)
        return inputs

    @contextmanager
    def subTest(self, *labels: Any, **parameters: Any) -> Iterator[None]:
        """A part of the test like any other: reporting thousands, one per weight, takes longer than running them."""
        with suppress(unittest.SkipTest):
            yield

    def test_sdpa_can_dispatch_composite_models(self) -> None:
        """In the place of transformers' test, which asks two towers' configs: all five follow. None is sdpa, too."""
        for model_class in self.all_model_classes:
            with tempfile.TemporaryDirectory() as folder:
                model_class(self.model_tester.get_config()).save_pretrained(folder)
                for chosen, expected in ((None, {"sdpa", None}), ("eager", {"eager"})):
                    config = model_class.from_pretrained(folder, attn_implementation=chosen).config
                    parts = [config, *(getattr(config, name) for name in config.sub_configs)]
                    self.assertEqual({part._attn_implementation for part in parts} - expected, set())

    def test_config(self) -> None:
        self.config_tester.run_common_tests()


def _tests_of(combination: str, images: bool) -> type[unittest.TestCase]:
    name = f"{combination.title()}{'With' if images else 'Without'}Images"
    members = {"combination": combination, "images": images, "__module__": __name__}
    return type(name, (ArrCocTests, unittest.TestCase), members)


for _combination in COMBINATIONS:
    for _images in (True, False):
        _tests = _tests_of(_combination, _images)
        globals()[_tests.__name__] = _tests
del _tests  # pytest would collect the last one under this name, too
