"""Training: stages that turn a configuration and rendered pages into weights."""
