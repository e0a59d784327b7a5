"""Two sweeps against each other, from the database to a verdict: comparing, gating, running again to be sure."""
