"""Figures of the evidence for an answer, and a page about the fetched patches of many questions."""
