"""Experiments: arms compared by pre-registered rules, ablations, and their reports."""
