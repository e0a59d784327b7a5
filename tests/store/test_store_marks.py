"""The status `noisy` of earlier databases has become a mark: `db upgrade` and `import` translate
it."""

import shutil

import pytest
import whole_sweeps as whole
from made_sweeps import sql
from older_schemas import lower_to_0010

from effbench.core.cell import Status, Trial
from effbench.store import HEAD_REVISION, Store

OK = Status.OK
#: What marks these trials; as a reason, an earlier version gave it.
HOST = (
    "the host was disturbed for 83 % of the timing (slowed down, or busy with other processes), so"
    " too few count"
)
THROTTLED = "during timing, on every attempt: clocks reduced (hw_slowdown)"
COMPILED = (
    "a graph was compiled again during timing (failed guard: n == 1): the figures include compile"
    " time"
)


@pytest.fixture
def older(path, cell, environment, begin):
    """Makes a database of revision 0010 with these trials of a cell, and with the three of its
    baseline."""

    def make(*trials):
        with Store.open(path, mode="write") as store:
            baseline, default = cell("eager"), cell("default")
            sweep_id = begin(store, [baseline, default])
            here = store.add_environment(environment(), {})
            of_baseline = [Trial(baseline.key, round, OK, latency_ms=4.0) for round in range(3)]
            for number, trial in enumerate(trials):
                trial.cell_key, trial.round = default.key, number
            for trial in (*of_baseline, *trials):
                store.record(sweep_id, here, trial)
        lower_to_0010(path)
        return path

    return make


def noisy(reason=HOST, latency_ms=2.0, **values):
    return Trial("", 0, OK, latency_ms=latency_ms, disturbance=reason, **values)


def upgraded(path):
    """The trials of the mode and its result, after the upgrade."""
    assert Store.upgrade(path) == ("0010", HEAD_REVISION)
    assert Store.check(path) == []
    return contents(path)


def contents(path):
    with Store.open(path) as store:
        sweep_id = store.find_sweep("last").id
        trials = [row for row in store.trials(sweep_id) if row.latency_ms != 4.0]
        (result,) = (row for row in store.results(sweep_id) if row.mode == "default")
    return trials, result


def test_a_noisy_trial_becomes_ok_and_marked(older):
    disturbance = "host busy for 83 % of the timing"
    ((trial,), result) = upgraded(older(noisy()))
    assert (trial.status, trial.reason, trial.disturbance) == ("ok", None, disturbance)
    assert (result.status, result.marked, result.disturbance) == ("ok", True, disturbance)
    assert result.speedup == pytest.approx(2.0)


def test_a_noisy_trial_without_a_reason_gets_one(older):
    path = older(noisy("unknown"))
    sql(path, "UPDATE trial SET reason = NULL")
    ((trial,), _) = upgraded(path)
    assert trial.disturbance == "host or GPU busy"


def test_a_trial_that_compiled_while_it_was_timed_becomes_degraded(older):
    ((trial,), result) = upgraded(older(noisy(COMPILED)))
    assert (trial.status, trial.reason, trial.disturbance) == ("degraded", COMPILED, None)
    assert (result.status, result.marked, result.speedup) == ("degraded", False, None)


def test_other_trials_stay_as_they_are(older):
    degraded = Trial("", 0, Status.DEGRADED, "2 graphs", latency_ms=2.5)
    trials, _ = upgraded(older(Trial("", 0, OK, latency_ms=2.0), degraded, noisy()))
    facts = [(row.status, row.reason, row.disturbance) for row in trials[:2]]
    assert facts == [("ok", None, None), ("degraded", "2 graphs", None)]


def test_an_imported_sweep_is_as_an_upgraded_one(older, target, tmp_path):
    source = older(
        noisy(samples={"latency_ms": [1.0] * 9, "latency_disturbed_ms": [3.0] * 99}),
        noisy(THROTTLED, latency_median_low_ms=1.5, latency_median_high_ms=2.5),
        noisy(COMPILED),
    )
    assert whole.outcomes(source, target) == ["imported"]
    assert Store.check(target) == []
    newer = shutil.copy(source, tmp_path / "upgraded.db")
    Store.upgrade(newer)
    assert whole.contents(target) == whole.contents(newer)
    assert whole.outcomes(source, newer) == ["already there"]
