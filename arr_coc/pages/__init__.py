"""Drawn pages with text and questions: what the reader is trained on, and the domains that `arr-coc render` draws."""
