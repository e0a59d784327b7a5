"""Two interpreters in one sweep on a GPU: a pair of trials on one device, each with its own
server."""

from __future__ import annotations

import itertools

import pytest

from effbench.core.environments import names_by
from effbench.store import Store

TINY = (
    "protocol=quick",
    "protocol.budget_s=0.2",
    "protocol.min_time_s=0.02",
    "protocol.warmup_s=0.02",
    "protocol.load_s=0",
    "protocol.rounds=2",
    "protocol.host_tolerance=1000",
    "executor.renew_server=false",
    "executor.foreign_wait_s=0",
)


@pytest.fixture(scope="module")
def swept(cli_in, tmp_path_factory, another_python):
    """`tiny` under the interpreter of the tests and under a virtual environment that has the same
    packages."""
    cli = cli_in(tmp_path_factory.mktemp("interpreters"))
    cli.python = another_python(cli.folder / "other")
    cli.done = cli.run(
        "-m",
        *TINY,
        "model=tiny",
        "device=cuda",
        "mode=eager,cuda-graph",
        f"python=null,{cli.python}",
    )
    with Store.open(cli.db) as store:
        (sweep,) = store.sweeps()
        cli.trials, cli.rows = store.trials(sweep.id), store.results(sweep.id)
        cli.environments = store.environments(row.environment_id for row in cli.rows)
    cli.half_of = names_by(cli.environments, "python")
    return cli


def test_both_interpreters_are_measured(swept):
    assert swept.done.code == 0, swept.done
    assert all(row.status.is_measured for row in swept.rows), [row.reason for row in swept.rows]
    measured = sorted((row.mode, swept.half_of[row.environment_id]) for row in swept.rows)
    modes = ("cuda-graph", "eager")
    assert measured == list(itertools.product(modes, ("other", "own")))


def test_each_interpreter_has_an_environment_of_the_same_gpu(swept):
    (gpu,) = {row.gpu_name for row in swept.environments}
    assert gpu is not None
    assert {row.interpreter for row in swept.environments} == {None, swept.python}
