"""Tables, figures, Markdown and the site of results. Import from the modules; the package exports
nothing.

Nothing here needs torch, pandas or Plotly.
"""
