"""Which sweeps the shipped experiments plan."""

import pytest

from effbench.claims.definition import find
from effbench.config import cells as plan
from effbench.config.launch import jobs_of
from effbench.config.overrides import read


@pytest.mark.slow
@pytest.mark.parametrize("experiment", find(["all"]), ids=lambda experiment: experiment.name)
def test_shipped_sweeps_can_be_planned(experiment):
    for words in experiment.sweeps.values():
        cells, _ = plan.split(jobs_of(read(words)))
        assert plan.resolve(cells, has_cuda=True)
