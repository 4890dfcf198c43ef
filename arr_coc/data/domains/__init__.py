"""Domains of rendered pages: each draws a page and asks questions about it, as a function of a random generator.

A new domain is a function registered in `DOMAINS`; `draw_page` and everything above it take it by its name.
"""

from . import chart, directory, document, form, receipt, sign, table  # noqa: F401  (each registers itself)
from .page import DOMAINS as DOMAINS
from .page import Difficulty as Difficulty
from .page import Domain as Domain
from .page import Page as Page
from .page import Question as Question
from .streaming import draw_page as draw_page

WORDINGS = tuple(
    wording for module in (receipt, table, chart, sign, directory, form) for wording in module.WORDINGS.values()
)
"""Ways to put the questions of every domain but the documents'."""
