"""How well a model answers, strategy by strategy, from one set of weights."""

from ..metrics import METRICS as METRICS
from .statistics import Interval as Interval
from .strategies import evaluate as evaluate
