"""Experiments: arms compared by rules written down before, ablations, and their reports."""
