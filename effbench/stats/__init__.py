"""Intervals, tests and change points: numbers in, numbers out. Thin over SciPy, which is imported lazily."""
