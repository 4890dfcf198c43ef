"""How well a model answers, strategy by strategy, from one set of weights."""

from ..metrics import METRICS as METRICS
from .evaluation import evaluate as evaluate
from .statistics import Interval as Interval
