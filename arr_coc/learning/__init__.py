"""Learning from use: feedback trains an adapter of the scorer, which is promoted if it is significantly better."""
