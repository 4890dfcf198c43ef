"""Stages that train a model from nothing: reading, copying, answering. Each trains in one process, on pages that it
draws."""
