"""What `effbench doctor` looks at, one file a part of the machine, and how it calibrates the machine."""
