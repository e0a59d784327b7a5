"""Workloads: one file a family. A model is a class (or factory) and its inputs, both named by a YAML in `conf/model/`.

`spec.py` is free of torch, for the side that plans; everything else here belongs to the worker's side.
"""
