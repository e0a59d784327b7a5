"""Confidence intervals, significance tests and change points of plain numbers. SciPy is imported
lazily. Timing, storing and running use them as well as the analysis, so this package is below
all of these."""
