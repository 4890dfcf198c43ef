"""An OpenAI-compatible server of one model: many clients, encodings that are used again, one batch of answers."""
