"""Published weights of several models -> one ARR-COC checkpoint."""

from . import clip_text, deepseek_ocr, ovis, qwen3  # noqa: F401  they register themselves
from .families import FAMILIES as FAMILIES
from .plan import Plan as Plan
from .plan import Request as Request
from .plan import make_plan as make_plan
from .plan_report import report as report
from .sources import Source as Source
from .sources import open_source as open_source
from .writer import write as write
