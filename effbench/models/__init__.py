"""Workloads, one file per family. A YAML in `conf/model/` names a model's class (or factory) and
describes its inputs.

`spec.py`, `presets.py` and `catalog.py` do not import torch, because planning uses them. The other
modules run only in workers.
"""
