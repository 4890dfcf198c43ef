"""Published formats of questions about images, and our own: one file each, one registry."""

from .base import FORMATS as FORMATS
from .base import Format as Format
from .chartqa import ChartQa as ChartQa
from .columns import Columns as Columns
from .docvqa import DocVqa as DocVqa
from .feedback import FeedbackLog as FeedbackLog
from .gqa import Gqa as Gqa
from .jsonl import Jsonl as Jsonl
from .mixed import Mixed as Mixed
from .rendered import Rendered as Rendered
from .textvqa import TextVqa as TextVqa
from .vqav2 import VqaV2 as VqaV2
