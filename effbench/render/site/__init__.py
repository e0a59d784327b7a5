"""The static site: pages that open from disk or from any web server, with no network access."""
