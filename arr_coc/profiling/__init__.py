"""Measurements: where time, memory and FLOPs go. Timings are ratios of runs that alternate in one process."""
