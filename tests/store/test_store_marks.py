"""The status `noisy` of earlier databases has become a mark: `db upgrade` translates it."""

import pytest
import whole_sweeps as whole
from made_sweeps import a_cell, faults, sql
from older_schemas import lower_to_0010

from effbench.store import HEAD_REVISION, maintenance

#: What marks these trials; as a reason, an earlier version gave it.
HOST = (
    "the host was disturbed for 83 % of the timing (slowed down, or busy with other processes), so"
    " too few count"
)
COMPILED = (
    "a graph was compiled again during timing (failed guard: n == 1): the figures include compile"
    " time"
)
#: Mode -> status, reason and disturbance of its trial, as it was recorded.
BEFORE = {
    "eager": ("ok", None, None),
    "busy": ("ok", None, HOST),
    "without a reason": ("ok", None, "unknown"),
    "compiled": ("ok", None, COMPILED),
    "degraded": ("degraded", "2 graphs", None),
}
#: The same after an upgrade.
AFTER = {
    **BEFORE,
    "busy": ("ok", None, "host busy for 83 % of the timing"),
    "without a reason": ("ok", None, "host or GPU busy"),
    "compiled": ("degraded", COMPILED, None),
}


@pytest.fixture
def older(path, made):
    """A database of revision 0010 with a trial of each mode."""
    cells = {}
    for mode, (status, reason, disturbance) in BEFORE.items():
        latency = 4.0 if mode == "eager" else 2.0
        facts = {"status": status, "reason": reason, "disturbance": disturbance}
        cells[a_cell(mode)] = {"latency_ms": latency, **facts}
    made.sweep(cells, rounds=1)
    lower_to_0010(path)
    sql(path, "UPDATE trial SET reason = NULL WHERE reason = 'unknown'")
    return path


def test_noisy_trials_become_ok_and_marked(older):
    assert maintenance.upgrade(older) == ("0010", HEAD_REVISION)
    assert faults(older) == []
    trials = {
        row["mode"]: (row["status"], row["reason"], row["disturbance"])
        for row in whole.trials_of(older)
    }
    assert trials == AFTER
    results = {row["mode"]: row for row in whole.results_of(older)}
    assert [mode for mode in results if results[mode]["marked"]] == ["busy", "without a reason"]
    assert results["busy"]["speedup"] == pytest.approx(2.0)
    assert results["compiled"]["speedup"] is None
