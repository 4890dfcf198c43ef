"""Running back on published vision-language models, through transformers' own methods: see docs/published-models.md."""

from .reader import AttachedReader as AttachedReader
from .reader import attach as attach
