"""Synthetic rendered documents: their texts, their appearance, and questions about them."""

from ..modeling.image_processing_arr_coc import Box as Box
from .domains.document import Document as Document
from .domains.document import Entry as Entry
from .domains.document import render_document as render_document
from .fonts import FontFace as FontFace
from .fonts import family_names as family_names
from .fonts import find_fonts as find_fonts
from .glyphs import CHARSET as CHARSET
from .glyphs import Glyph as Glyph
from .questions import QUESTION_TEMPLATES_TEST as QUESTION_TEMPLATES_TEST
from .questions import QUESTION_TEMPLATES_TRAIN as QUESTION_TEMPLATES_TRAIN
from .questions import ask as ask
from .splits import SPLITS as SPLITS
from .splits import Split as Split
from .values import FIELDS as FIELDS
