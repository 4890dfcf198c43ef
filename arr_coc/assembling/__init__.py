"""Assembles one ARR-COC checkpoint from published weights of several models."""

from . import published  # noqa: F401  they register themselves
from .families import FAMILIES as FAMILIES
from .plan import Plan as Plan
from .plan import Request as Request
from .plan import make_plan as make_plan
from .plan import report as report
from .sources import WeightsSource as WeightsSource
from .sources import open_source as open_source
from .trained import complete as complete
from .trained import find_language_model as find_language_model
from .trained import take_trained as take_trained
from .writer import write as write
