"""What a sweep would build is looked at before its first trial."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from effbench.errors import ConfigError
from effbench.sweep import pool
from effbench.worker import probe

LINEAR = {"_target_": "torch.nn.Linear"}
EAGER = {"name": "eager", "_target_": "effbench.modes.eager.Eager"}
TRAINING = {"phase": "training", "training": {"loss": "os.system"}}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": {"module": {"_target_": "os.system"}}}, "_target_=os.system comes with Python"),
        ({"model": {"module": {"_target_": "fractions.Fraction"}}}, "_target_=fractions.Fraction comes with Python"),
        ({"model": {"module": {"_target_": "torch.device"}}}, "torch.device is a class; allowed: a torch.nn.Module"),
        ({"model": {"module": {**LINEAR, "x": [{"_target_": "os.system"}]}}}, "_target_=os.system comes with Python"),
        ({"mode": {**EAGER, "_target_": "os.system"}}, "_target_=os.system comes with Python"),
        (TRAINING, "training.loss=os.system comes with Python"),
    ],
)
def test_what_python_itself_ships_is_refused_before_the_first_trial(changed, said):
    part = {"model": {"module": LINEAR}, "mode": EAGER, "phase": "inference", "device": "cpu", **changed}
    here = SimpleNamespace(call=lambda task, payload, timeout_s: probe.run(payload, lambda phase: None))
    with pytest.raises(ConfigError, match=said):
        pool.probe(here, [part], "eager")
