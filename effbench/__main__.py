"""Run `effbench` as `python -m effbench`."""

from effbench.cli.main import main

main()
