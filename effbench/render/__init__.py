"""Tables, figures, Markdown and the site of results. Import from the modules; the package exports
nothing. Nothing here imports torch, pandas or Plotly; the site
copies the script of the installed Plotly.

| module | answers |
|---|---|
| tables, summary | how does a speedup table look, and what is its conclusion? |
| marks, remarks, reasons, bottlenecks | how is a figure written, how was it measured, and why? |
| comparison, history_table, claims, advice | how do changes, history, verdicts and advice look? |
| data | what does a report read from the database? |
| templating, colors | how do values become text of a page, and modes colours? |
| site | how are the pages of the report made? |
"""
