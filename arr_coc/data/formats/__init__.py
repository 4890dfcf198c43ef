"""Published formats of questions about images, and our own, in one registry."""

from .base import FORMATS as FORMATS
from .base import Columns as Columns
from .base import Format as Format
from .own import FeedbackLog as FeedbackLog
from .own import Jsonl as Jsonl
from .own import Mixed as Mixed
from .own import Rendered as Rendered
from .published import ChartQa as ChartQa
from .published import DocVqa as DocVqa
from .published import Gqa as Gqa
from .published import TextVqa as TextVqa
from .published import VqaV2 as VqaV2
