"""Which earlier results an experiment uses again, and which sweeps the shipped ones plan."""

from types import SimpleNamespace

import pytest
from made_sweeps import DEFAULT, EAGER, environment, sql

from effbench.claims.definition import find
from effbench.claims.run import earlier
from effbench.config import cells as plan
from effbench.config.launch import hydra_sweep
from effbench.store import Store

PROTOCOL = SimpleNamespace(name="standard", rounds=5)
SETTINGS = SimpleNamespace(protocol=PROTOCOL, baseline_mode="eager")


def reused(made, settings=SETTINGS):
    """The sweep whose results would be used again."""
    with Store.open(made.path) as store:
        results = earlier(
            store,
            [EAGER.key, DEFAULT.key],
            environment().id,
            settings,
        )
    if not results:
        return None
    assert [result.cell_key for result in results] == [EAGER.key, DEFAULT.key]
    return results[0].sweep_id


def test_the_newest_sweep_on_a_quiet_host_is_reused(made):
    quiet = made.sweep([EAGER, DEFAULT])
    made.sweep({EAGER: {}, DEFAULT: {"disturbance": "host busy"}})
    assert reused(made) == quiet


def test_imported_sweeps_come_last(made):
    own, imported = made.sweep([EAGER, DEFAULT]), made.sweep([EAGER, DEFAULT])
    sql(made.path, f"UPDATE sweep SET imported_at = started_at WHERE id = '{imported}'", rows=1)
    assert reused(made) == own


@pytest.mark.parametrize(
    "changed", [{"baseline_mode": "default"}, {"protocol": SimpleNamespace(rounds=3)}]
)
def test_a_sweep_measured_otherwise_is_not_reused(made, changed):
    made.sweep([EAGER, DEFAULT])
    assert reused(made, SimpleNamespace(**vars(SETTINGS) | changed)) is None


def test_an_incomplete_sweep_is_not_reused(made):
    made.sweep([EAGER])
    made.sweep([EAGER, DEFAULT], state="interrupted")
    assert reused(made) is None


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
