"""Tables, figures, Markdown and the site of results. Import from the modules; the package exports nothing.

`tables` loads quickly; `data`, `figures` and `site` need pandas and Plotly. Nothing here needs torch.
"""
