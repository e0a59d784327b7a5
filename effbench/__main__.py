"""`python -m effbench` is `effbench`."""

from effbench.cli import main

main()
