"""transformers' tests of processors and image processors."""

import unittest
from typing import Any

from combinations import SIDE
from helpers import TINY_PATCH, tiny_tokenizer
from transformers import PreTrainedTokenizerFast
from transformers_tests.test_image_processing_common import ImageProcessingTester, ImageProcessingTestMixin
from transformers_tests.test_processing_common import ProcessorTesterMixin

from arr_coc import ArrCocImageProcessor, ArrCocProcessor


class ArrCocImageProcessingTester(ImageProcessingTester):
    """A small square; the only backend is PIL."""

    def __init__(self, parent: unittest.TestCase, **kwargs: Any) -> None:
        super().__init__(parent, size={"height": SIDE, "width": SIDE}, patch_size=TINY_PATCH, **kwargs)

    def _get_image_processing_classes(self) -> dict[str, Any]:
        return {"pil": ArrCocImageProcessor}


class ArrCocImageProcessing(ImageProcessingTestMixin, unittest.TestCase):
    image_processor_tester_class = ArrCocImageProcessingTester
    test_cast_dtype = True


class ArrCocProcessing(ProcessorTesterMixin, unittest.TestCase):
    processor_class = ArrCocProcessor

    @classmethod
    def _setup_image_processor(cls) -> ArrCocImageProcessor:
        return ArrCocImageProcessor(size={"height": SIDE, "width": SIDE}, patch_size=TINY_PATCH)

    @classmethod
    def _setup_tokenizer(cls) -> PreTrainedTokenizerFast:
        return tiny_tokenizer()
