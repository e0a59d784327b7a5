"""Workloads: one file a family. A model is a class (or factory) and its inputs, both named by a YAML in `conf/model/`.

`spec.py` does not import torch, as planning needs it; everything else belongs to the worker's side.
"""
