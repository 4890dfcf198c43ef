"""Seeing why: figures of what led to an answer, and what is fetched for many questions, as a page."""
