"""Tables, figures, Markdown and the site, drawn from the view `results`; import what you need from its modules.

`tables` loads quickly; `data`, `figures` and `site` need pandas and Plotly. Nothing here needs torch.
"""
