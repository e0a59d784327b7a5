"""Confidence intervals, significance tests and change points of plain numbers. SciPy is imported
lazily. Timing, storing and running use them as well as the analysis, so this package is below
all of these. Where each question is decided:

- which interval a speedup has: the steps at the top of store/summary.py
- which interval a mean has: `intervals.LogEstimate.interval`; a trial's median: `median_interval`
- whether two figures differ significantly: `intervals.is_less`; which of many differ:
  `significance.significant`
- whether there are enough rounds: `intervals.enough`; enough duets: `significance.is_decided`
- where the level of a series changed: `changepoints.find_changes`
"""
