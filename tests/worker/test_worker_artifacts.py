"""A process that dies while its artifacts are made."""

from __future__ import annotations

import pytest

from effbench.store import Store

DIES = """
import os
import time

import torch
from torch import nn


class Dies(nn.Linear):
    def __init__(self, hangs=False):
        super().__init__(4, 4)
        self.hangs = hangs

    def forward(self, x):
        if torch.compiler.is_compiling():  # where the graph is looked for: the trace is there by then
            time.sleep(60) if self.hangs else os._exit(3)
        return super().forward(x)
"""


@pytest.mark.parametrize("hangs, status", [("false", "crashed"), ("true", "timeout")])
@pytest.mark.slow
def test_what_is_half_made_is_not_left_behind(cli, hangs, status):
    (cli.folder / "dies.py").write_text(DIES)
    done = cli.sweep("model=custom", "model.module._target_=dies.py:Dies", f"model.module.hangs={hangs}",
                     "model.inputs.x.shape=[4]", "artifacts=[trace,graph]", "timeout_s=8", *cli.tiny)  # fmt: skip
    assert done.code == 1, done
    with Store.open(cli.db) as store:
        (trial,) = store.trials(store.find_sweep("last").id)
    assert (trial["status"], trial["phase"]) == (status, "artifacts"), trial
    assert "artifacts" not in trial["extra"]
    assert [path for path in cli.db.parent.rglob("artifacts/*/*") if path.is_file() or any(path.iterdir())] == []
