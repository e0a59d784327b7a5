"""Figures, tables and pages drawn from the view `results`; import what you need from its modules.

`speedup_table` needs the standard library alone; `page` and `figures` need pandas and Plotly. Nothing here needs torch.
"""
