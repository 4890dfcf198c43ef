"""Learning from use: feedback becomes an adapter of the scorer, which is promoted where it is shown to be better."""
