"""Confidence intervals, significance tests and change points of plain numbers. SciPy is imported
lazily."""
