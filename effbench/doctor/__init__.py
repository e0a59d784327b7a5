"""The checks of `effbench doctor`, and its calibration of the machine."""
