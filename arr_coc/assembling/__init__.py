"""Published weights of several models -> one ARR-COC checkpoint."""

from . import clip_text, deepseek_ocr, ovis, qwen3  # noqa: F401  they register themselves
from .families import FAMILIES as FAMILIES
from .planning import DTYPES as DTYPES
from .planning import Plan as Plan
from .planning import Request as Request
from .planning import make_plan as make_plan
from .reporting import report as report
from .sources import Source as Source
from .sources import open_source as open_source
from .writing import write as write
