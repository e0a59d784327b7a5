"""Experiments: a question, the sweeps and the evidence that answer it, and the claims that they decide."""
