"""Which sweeps the shipped experiments plan."""

import pytest

from effbench.claims.definition import find
from effbench.config import cells as plan
from effbench.config.launch import hydra_sweep


@pytest.mark.slow
@pytest.mark.parametrize("experiment", find(["all"]), ids=lambda experiment: experiment.name)
def test_shipped_sweeps_can_be_planned(experiment):
    planned = []

    def only_plan(jobs, command):
        parts, _ = plan.split(jobs)
        planned.extend(plan.resolve(parts, has_cuda=True))

    for words in experiment.sweeps.values():
        hydra_sweep(
            list(words),
            quiet=True,
            conductor=only_plan,
            server=object(),
        )
    assert bool(planned) is bool(experiment.sweeps)
