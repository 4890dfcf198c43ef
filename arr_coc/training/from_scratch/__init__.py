"""Stages that make a model from nothing: reading, copying, answering. Each trains in one process, on pages it draws."""
