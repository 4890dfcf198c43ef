"""An OpenAI-compatible server of one model: many clients, cached encodings, answers in a batch."""
