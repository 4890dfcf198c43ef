"""Training of checkpoints that read pages into a pretrained language model's own wordpieces."""
