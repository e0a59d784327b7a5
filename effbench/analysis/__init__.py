"""Pure functions over measured values: statistics, summaries, comparisons. No database, no torch."""
