"""The command line: `main` finds the command, and each command has one file, named after it
(`import` is in `imports`). Refusals of settings that do not exist are in `config/refusals.py`;
those of values where they are checked.
"""
