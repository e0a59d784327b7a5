"""What `effbench doctor` checks, and how it calibrates the machine."""
