"""Measurements beside what people would use instead. Run from the repository's root; benchmarks/README.md says how."""
