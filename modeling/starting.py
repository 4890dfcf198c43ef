"""How weights begin that no checkpoint gives, where transformers' rule (normal weights, zero biases) does not fit."""

from torch import nn
from transformers import initialization

from .bridges import Correction, LevelEmbedding
from .grid_encoder import GridAttention, GridEncoder
from .language_model import RowLayout
from .scorers import PatchLayer, Realizer, Temperature
from .semantic_encoder import SemanticEncoder


def start_weights(module: nn.Module, std: float) -> None:
    """Initialises the module's own parameters in place, those that were not loaded; `std`: `initializer_range`."""
    if isinstance(module, GridAttention):
        initialization.zeros_(module.rel_pos_h)
        initialization.zeros_(module.rel_pos_w)
    elif isinstance(module, GridEncoder):
        initialization.normal_(module.pos_embed, std=std)
    elif isinstance(module, SemanticEncoder):
        initialization.normal_(module.class_embedding, std=module.config.initializer_range)
        initialization.normal_(module.position_embedding, std=module.config.initializer_range)
        initialization.zeros_(module.saccade_embedding)
    elif isinstance(module, PatchLayer):
        initialization.copy_(module.query_position, module.initial_position())
        initialization.copy_(module.key_position, module.initial_position())
    elif isinstance(module, Realizer):
        initialization.normal_(module.nothing, std=std)
    elif isinstance(module, Temperature):
        initialization.constant_(module.weight, 10.0)
        initialization.constant_(module.bias, -3.0)
    elif isinstance(module, Correction | LevelEmbedding):
        initialization.zeros_(module.weight)
    elif isinstance(module, RowLayout):  # as DeepSeek-OCR begins
        initialization.normal_(module.image_newline, std=module.image_newline.shape[0] ** -0.5)
        initialization.normal_(module.view_seperator, std=module.view_seperator.shape[0] ** -0.5)
