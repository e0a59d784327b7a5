"""Run `effbench` as `python -m effbench`."""

from effbench.cli import main

main()
