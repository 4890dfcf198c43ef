"""transformers' tests of configs, over each part's; the whole model's is tested with the models."""

import unittest

from transformers_tests.test_configuration_common import ConfigTester

from arr_coc.modeling.configuration_arr_coc import (
    ArrCocBridgeConfig,
    ArrCocFetcherConfig,
    ArrCocSemanticConfig,
    ArrCocVisionConfig,
)


class ArrCocConfiguration(unittest.TestCase):
    def test_vision(self) -> None:
        self._run(ArrCocVisionConfig, image_size=64)

    def test_semantic(self) -> None:
        self._run(ArrCocSemanticConfig, intermediate_size=64)

    def test_fetcher(self) -> None:
        self._run(ArrCocFetcherConfig, properties=["hidden_size", "num_heads", "num_layers"], allocator="window")

    def test_bridge(self) -> None:
        self._run(ArrCocBridgeConfig, properties=["num_heads", "num_layers"], kind="quality")

    def _run(self, config_class: type, *, properties: list[str] | None = None, **changes: object) -> None:
        """All of `ConfigTester`'s tests; `changes`: fields that have to survive saving."""
        tester = ConfigTester(self, config_class, has_text_modality=False, common_properties=properties, **changes)
        tester.run_common_tests()
