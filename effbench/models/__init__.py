"""Workloads, one file per family. A YAML in `conf/model/` names a model's class (or factory) and
describes its inputs.

`spec.py` does not import torch, because planning uses it. The other modules run only in workers.
"""
