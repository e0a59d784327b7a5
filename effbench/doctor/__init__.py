"""The checks of `effbench doctor`."""
