"""Synthetic rendered documents: what they say, how they look, and what is asked about them."""

from .fonts import TEST_FAMILIES as TEST_FAMILIES
from .fonts import TRAIN_FAMILIES as TRAIN_FAMILIES
from .fonts import FontFace as FontFace
from .fonts import find_fonts as find_fonts
from .questions import QUESTION_TEMPLATES_TEST as QUESTION_TEMPLATES_TEST
from .questions import QUESTION_TEMPLATES_TRAIN as QUESTION_TEMPLATES_TRAIN
from .questions import ask as ask
from .rendering import CHARSET as CHARSET
from .rendering import TEST_LAYOUTS as TEST_LAYOUTS
from .rendering import TRAIN_LAYOUTS as TRAIN_LAYOUTS
from .rendering import Box as Box
from .rendering import Document as Document
from .rendering import Entry as Entry
from .rendering import Glyph as Glyph
from .rendering import box_targets as box_targets
from .rendering import glyph_targets as glyph_targets
from .rendering import render_dense_page as render_dense_page
from .rendering import render_document as render_document
from .values import FIELDS as FIELDS
from .values import Split as Split
