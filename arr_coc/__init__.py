"""ARR-COC: a vision-language model that runs back into the image for the patches a question needs.

After `import arr_coc`, transformers' Auto classes and pipelines know `model_type` "arr_coc". The names below load when
they are first used (PEP 562), so that the command line starts without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .auto_classes import register_with_transformers
from .version import __version__ as __version__

if TYPE_CHECKING:
    from .adapters import scorer_lora_config as scorer_lora_config
    from .attached import attach as attach
    from .modeling.configuration_arr_coc import ArrCocConfig as ArrCocConfig
    from .modeling.image_processing_arr_coc import ArrCocImageProcessor as ArrCocImageProcessor
    from .modeling.modeling_arr_coc import ArrCocForConditionalGeneration as ArrCocForConditionalGeneration
    from .modeling.modeling_arr_coc import ArrCocModel as ArrCocModel
    from .modeling.processing_arr_coc import ArrCocProcessor as ArrCocProcessor
    from .publishing.building import load_model as load_model

_MODULES = {
    "scorer_lora_config": ".adapters",
    "attach": ".attached",
    "load_model": ".publishing.building",
    "ArrCocConfig": ".modeling.configuration_arr_coc",
    "ArrCocImageProcessor": ".modeling.image_processing_arr_coc",
    "ArrCocForConditionalGeneration": ".modeling.modeling_arr_coc",
    "ArrCocModel": ".modeling.modeling_arr_coc",
    "ArrCocProcessor": ".modeling.processing_arr_coc",
}

register_with_transformers()


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
