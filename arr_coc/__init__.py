"""ARR-COC: a vision-language model that runs back into the image for the patches a question needs.

Importing it registers its classes, so that transformers' Auto classes and pipelines know `model_type` "arr_coc".
"""

from .adapters import scorer_lora_config as scorer_lora_config
from .attached import attach as attach
from .auto_classes import register
from .modeling.configuration_arr_coc import ArrCocConfig as ArrCocConfig
from .modeling.image_processing_arr_coc import ArrCocImageProcessor as ArrCocImageProcessor
from .modeling.modeling_arr_coc import ArrCocForConditionalGeneration as ArrCocForConditionalGeneration
from .modeling.modeling_arr_coc import ArrCocModel as ArrCocModel
from .modeling.processing_arr_coc import ArrCocProcessor as ArrCocProcessor
from .version import __version__ as __version__

register()
