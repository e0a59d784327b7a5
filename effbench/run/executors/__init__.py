"""Where trials run: on this machine, or as jobs of a cluster. Both have the interface of `base`."""
