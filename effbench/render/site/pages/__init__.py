"""Pages of the site, in the order of `build.PAGES`."""
