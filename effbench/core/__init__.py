"""What every other package may use: the core types, settings, metrics, errors and text.

| module | answers |
|---|---|
| cell | what is a cell, a trial and a result? |
| metrics, quantities | which figures do they have, and what is a metric? |
| trace | what ran in a call? |
| settings, streams, buckets | what may a sweep set? |
| labels, environments, disturbances | how are rows, machines and disturbances named? |
| table, terminal, printable, outputs | how does text reach people and files? |
| message, meeting | what do processes say to each other? |
| errors, logs, warning_filters | what is raised, and what is logged? |
| folders, python_files, processes, cores | what does effbench need of the machine? |
"""
