"""How well a model answers, strategy by strategy, from one set of weights."""

from .evaluation import evaluate as evaluate
from .metrics import METRICS as METRICS
from .statistics import Interval as Interval
