"""Tests of transformers that cannot hold for this model: `class::test`, with wildcards -> why.

They run all the same and have to fail: see conftest.py.
"""

EXCLUSIONS = {
    "*WithImages::test_inputs_embeds*": (
        "Beside images the prompt has to come as ids: placeholders are found by them, and random relevance is seeded."
    ),
    "*Images::test_multimodal_outputs_are_returned": (
        "It asks for `image_outputs`, new in transformers 5.24: what an image became is in `image_tokens` and `fetch`."
    ),
    "AdaptiveWithImages::test_attention_outputs": (
        "The allocator fetched less than the prompt holds placeholders for; the rest is cut, and so are the attentions."
    ),
    "AdaptiveWithImages::test_hidden_states_output": (
        "The allocator fetched less than the prompt holds placeholders for; the rest is cut, and so are hidden states."
    ),
    "WordpiecesWithImages::test_attention_outputs": (
        "Where fewer wordpieces are read than patches fetched, the rest of the placeholders and attentions is cut."
    ),
    "WordpiecesWithImages::test_hidden_states_output": (
        "Where fewer wordpieces are read than patches fetched, the rest of the placeholders and hidden states is cut."
    ),
    "WordpiecesWithImages::test_training_gradient_checkpointing*": (
        "Which characters there are is decided, not mixed: the reader's head learns from text alone, by `recognition`."
    ),
    "*WithoutImages::test_training_gradient_checkpointing*": (
        "The test watches the model's first layer, which is the grid encoder's: text alone does not pass through it."
    ),
    "ArrCocImageProcessing::test_call_numpy_4_channels": (
        "Images are red, green and blue: the patches' textures read luminance, so four channels are refused."
    ),
    "ArrCocImageProcessing::test_new_models_require_torchvision_backend": (
        "A rule for new models inside transformers; this processor does without torchvision."
    ),
    "ArrCocProcessing::test_if_input_has_mismatching_tokens_and_mm_data": (
        "The mismatch is refused in other words, which give both counts for every row."
    ),
    "ArrCocProcessing::test_init_arguments_not_in_processor_kwargs": (
        "The budget has a default in the checkpoint and another value in a call: the case that the test's own "
        "docstring leaves open."
    ),
    "ArrCocProcessing::test_processor_from_and_save_pretrained*": (
        "Saving copies the code beside the processor; transformers notes that (auto_map) in the processor that it "
        "saved, and drops the note from the one that it loads."
    ),
}
