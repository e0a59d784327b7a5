"""What every other package may use: the core types, settings, metrics, errors and text."""
