"""Domains of drawn pages: each draws a page with questions from a random generator.

A new domain registers a function that draws a page under a name (`DOMAINS.register`). It can then be used by this name
in `draw_page` and everything above.
"""

from . import browser, document, generated  # noqa: F401  (each registers itself)
from .domain import AS_DRAWN as AS_DRAWN
from .domain import DOMAINS as DOMAINS
from .domain import Page as Page
from .domain import Variations as Variations
from .domain import draw_page as draw_page
