"""How well a model answers, strategy by strategy, from one set of weights."""

from .evaluation import evaluate as evaluate
from .metrics import METRICS as METRICS
from .records import Record as Record
from .records import read_records as read_records
from .statistics import Interval as Interval
