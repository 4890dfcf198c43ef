"""transformers' Auto classes, and which class of ours each of them gives."""

import transformers

from .modeling.auto_map import AUTO_MODELS
from .modeling.configuration_arr_coc import ArrCocConfig
from .modeling.image_processing_arr_coc import ArrCocImageProcessor
from .modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from .modeling.processing_arr_coc import ArrCocProcessor


def register() -> None:
    """Makes transformers' Auto classes know ours; may be repeated."""
    transformers.AutoConfig.register(ArrCocConfig.model_type, ArrCocConfig, exist_ok=True)
    for name in AUTO_MODELS:
        getattr(transformers, name).register(ArrCocConfig, ArrCocForConditionalGeneration, exist_ok=True)
    transformers.AutoProcessor.register(ArrCocConfig, ArrCocProcessor, exist_ok=True)
    transformers.AutoImageProcessor.register(
        ArrCocConfig, image_processor_classes={"pil": ArrCocImageProcessor}, exist_ok=True
    )
