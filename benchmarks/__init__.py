"""Measurements of the model and of its alternatives. Run them from the repository's root, see benchmarks/README.md."""
