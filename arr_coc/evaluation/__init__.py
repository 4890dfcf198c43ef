"""Evaluation of one model: its answers and fetched patches by strategy, with one set of weights."""

from ..metrics import METRICS as METRICS
from .statistics import Interval as Interval
from .strategies import evaluate as evaluate
