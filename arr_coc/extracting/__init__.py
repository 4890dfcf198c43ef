"""Extraction from folders: documents become rows of a table, and a page to check them by."""
