"""The status `noisy` of earlier databases has become a mark: `db upgrade` and `import` translate
it."""

import shutil

import pytest
import sqlalchemy as sa
import whole_sweeps as whole
from made_sweeps import sql
from older_schemas import lower_to_0010

from effbench.core.cell import Status, Trial
from effbench.store import HEAD_REVISION, Store
from effbench.store.schema import TRIAL

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
    assert Store.check(path, deep=True) == []
    return contents(path)


def contents(path):
    with Store.open(path) as store:
        sweep_id = store.find_sweep("last").id
        trials = [row for row in store.trials(sweep_id) if row["latency_ms"] != 4.0]
        (result,) = (row for row in store.results(sweep_id) if row.mode == "default")
    return trials, result


def test_a_noisy_trial_becomes_ok_and_marked(older):
    disturbance = "host busy for 83 % of the timing"
    ((trial,), result) = upgraded(older(noisy()))
    assert (trial["status"], trial["reason"], trial["disturbance"]) == ("ok", None, disturbance)
    assert (result.status, result.marked, result.disturbance) == ("ok", True, disturbance)
    assert result.speedup == pytest.approx(2.0)


def test_a_noisy_trial_without_a_reason_gets_one(older):
    path = older(noisy("unknown"))
    sql(path, "UPDATE trial SET reason = NULL")
    ((trial,), _) = upgraded(path)
    assert trial["disturbance"] == "host or GPU busy"


def test_a_trial_that_compiled_while_it_was_timed_becomes_degraded(older):
    ((trial,), result) = upgraded(older(noisy(COMPILED)))
    assert (trial["status"], trial["reason"], trial["disturbance"]) == ("degraded", COMPILED, None)
    assert (result.status, result.marked, result.speedup) == ("degraded", False, None)


def test_other_trials_stay_as_they_are(older):
    known = {"samples": {"latency_disturbed_ms": SLOW}, "latency_median_low_ms": 1.9}
    degraded = Trial("", 0, Status.DEGRADED, "2 graphs", latency_ms=2.5)
    trials, _ = upgraded(older(Trial("", 0, OK, latency_ms=2.0, **known), degraded, noisy()))
    facts = [(row["status"], row["reason"], row["latency_median_low_ms"]) for row in trials[:2]]
    assert facts == [("ok", None, 1.9), ("degraded", "2 graphs", None)]


QUIET, SLOW = [1.0] * 9, [3.0] * 99
LATENCY_BOUNDS = {
    "both kinds of samples": (
        {"latency_ms": QUIET, "latency_disturbed_ms": SLOW},
        (1.9, 2.1),
        (1.0, 3.0),
    ),
    "samples but no bounds": (
        {"latency_ms": [1.5], "latency_disturbed_ms": SLOW},
        (None, None),
        (1.5, 3.0),
    ),
    "nothing": ({}, (None, None), (None, None)),
    "values that are no times": (
        {"latency_disturbed_ms": [0.0, -1.0, float("nan"), 5.0]},
        (1.9, 2.1),
        (1.9, 5.0),
    ),
}


@pytest.mark.parametrize(
    ("samples", "before", "after"), LATENCY_BOUNDS.values(), ids=LATENCY_BOUNDS
)
def test_the_bounds_of_a_marked_trial_hold_the_medians_of_its_samples(
    older, samples, before, after
):
    low, high = before
    trial = noisy(samples=samples, latency_median_low_ms=low, latency_median_high_ms=high)
    ((row,), _) = upgraded(older(trial))
    assert (row["latency_median_low_ms"], row["latency_median_high_ms"]) == pytest.approx(after)


def test_the_period_gets_bounds_from_its_own_samples(older):
    samples = {"period_ms": [0.5] * 9, "period_disturbed_ms": [0.75] * 9, "latency_ms": QUIET}
    ((row,), result) = upgraded(older(noisy(period_ms=0.5, samples=samples)))
    assert (row["period_median_low_ms"], row["period_median_high_ms"]) == (0.5, 0.75)
    assert (result.period_ci_low_ms, result.period_ci_high_ms) == pytest.approx((0.5, 0.75))


DAMAGES = {
    "cut off": "data = substr(data, 1, 5)",
    "text instead of bytes": "data = 'fast'",
    "text instead of a count": "stored = 'many'",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_samples_do_not_prevent_the_upgrade(older, damage):
    """Those that no table takes any more are left out; `db check` names the others."""
    known = {"latency_median_low_ms": 1.9, "latency_median_high_ms": 2.1}
    path = older(noisy(samples={"latency_ms": QUIET, "latency_disturbed_ms": SLOW}, **known))
    sql(path, f"UPDATE sample SET {damage} WHERE timer = 'latency_disturbed_ms'", rows=1)
    assert Store.upgrade(path) == ("0010", HEAD_REVISION)
    with Store.open(path) as store, store.reading() as connection:
        bounds = sa.select(TRIAL.c.latency_median_low_ms, TRIAL.c.latency_median_high_ms)
        row = connection.execute(bounds.where(TRIAL.c.disturbance.is_not(None))).one()
    assert tuple(row) == (1.0, 2.1), "of the undisturbed samples and the known bounds"


def test_text_instead_of_a_bound_does_not_prevent_the_upgrade(older):
    path = older(noisy(samples={"latency_ms": QUIET}, latency_median_low_ms=1.9))
    sql(path, "UPDATE trial SET latency_median_low_ms = 'low' WHERE status = 'noisy'", rows=1)
    ((row,), _) = upgraded(path)
    assert row["latency_median_low_ms"] == 1.0


def test_an_imported_sweep_is_as_an_upgraded_one(older, target, tmp_path):
    source = older(
        noisy(samples={"latency_ms": QUIET, "latency_disturbed_ms": SLOW}),
        noisy(THROTTLED, latency_median_low_ms=1.5, latency_median_high_ms=2.5),
        noisy(COMPILED),
    )
    assert whole.outcomes(source, target) == ["imported"]
    assert Store.check(target, deep=True) == []
    newer = shutil.copy(source, tmp_path / "upgraded.db")
    Store.upgrade(newer)
    assert whole.contents(target) == whole.contents(newer)
    assert whole.outcomes(source, newer) == ["already there"]
