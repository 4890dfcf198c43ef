"""Which class of these files each of transformers' Auto classes takes: `auto_map` in a saved config.

`_auto_class` makes `save_pretrained` copy a class' code, but names one Auto class only; the config names them all.
"""

AUTO_MODELS = ("AutoModel", "AutoModelForImageTextToText", "AutoModelForMultimodalLM", "AutoModelForCausalLM")
"""The Auto classes that give an `ArrCocForConditionalGeneration`: every one of them can `generate`."""

PROCESSOR_MAP = {
    "AutoProcessor": "processing_arr_coc.ArrCocProcessor",
    "AutoImageProcessor": "image_processing_arr_coc.ArrCocImageProcessor",
}
AUTO_MAP = {
    "AutoConfig": "configuration_arr_coc.ArrCocConfig",
    **dict.fromkeys(AUTO_MODELS, "modeling_arr_coc.ArrCocForConditionalGeneration"),
    **PROCESSOR_MAP,
}
