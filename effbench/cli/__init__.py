"""The command line: `main` finds the command, and each command has one file, named after it
(`import` is in `imports`). Refusals of overrides are in `config/refusals.py`.
"""
