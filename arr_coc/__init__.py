"""ARR-COC: a vision-language model that runs back into the image for the patches a question needs.

Importing it registers its classes, so that transformers' Auto classes and pipelines know `model_type` "arr_coc".
"""

import transformers

from .adapters import scorer_lora_config as scorer_lora_config
from .modeling.auto_map import AUTO_MODELS as AUTO_MODELS
from .modeling.configuration_arr_coc import ArrCocConfig as ArrCocConfig
from .modeling.image_processing_arr_coc import ArrCocImageProcessor as ArrCocImageProcessor
from .modeling.modeling_arr_coc import ArrCocForConditionalGeneration as ArrCocForConditionalGeneration
from .modeling.modeling_arr_coc import ArrCocModel as ArrCocModel
from .modeling.processing_arr_coc import ArrCocProcessor as ArrCocProcessor
from .version import __version__ as __version__


def register() -> None:
    """Makes transformers' Auto classes know ours; may be repeated."""
    transformers.AutoConfig.register(ArrCocConfig.model_type, ArrCocConfig, exist_ok=True)
    for name in AUTO_MODELS:
        getattr(transformers, name).register(ArrCocConfig, ArrCocForConditionalGeneration, exist_ok=True)
    transformers.AutoProcessor.register(ArrCocConfig, ArrCocProcessor, exist_ok=True)
    transformers.AutoImageProcessor.register(
        ArrCocConfig, image_processor_classes={"pil": ArrCocImageProcessor}, exist_ok=True
    )


register()
