"""Why times are marked although enough samples are undisturbed: others used the cores."""

from dataclasses import replace

import pytest

from effbench.core.disturbances import busy_host
from effbench.measure.host import CoreUse, HostFacts
from effbench.measure.rules import Rules
from effbench.worker.why_marked import busy_cores, of_cold_start, stolen_time

SINGLE, SEVERAL = Rules(rounds=1), Rules(rounds=3)
#: Nobody else uses the cores.
QUIET = HostFacts(0.03, 0.06, 0.0, 0.1, all_cores_matter=True)
MOST_CORES = busy_host(": other processes used 60 % of the cores")


@pytest.mark.parametrize(
    ("changed", "single", "of_several"),
    [
        ({}, None, None),
        ({"others_fraction": 0.4}, busy_host(": other processes used 40 % of the cores"), None),
        ({"others_fraction": 0.6}, MOST_CORES, MOST_CORES),
        ({"high_ms": 0.15}, busy_host(": its speed changed by 5.0 ×"), None),
        ({"others_fraction": 0.6, "all_cores_matter": False}, None, None),
    ],
    ids=["quiet", "others", "crowded", "two speeds", "a GPU, or not asked for"],
)
def test_a_single_trial_tolerates_less(changed, single, of_several):
    """No other process of the cell can show that its times are wrong."""
    host = replace(QUIET, **changed)
    assert busy_cores(host, SEVERAL) == of_several
    assert busy_cores(host, SINGLE) == single


@pytest.mark.parametrize(("others", "is_marked"), [(0.14, False), (0.16, True)])
def test_short_calls_tolerate_less(others, is_marked):
    host = replace(QUIET, others_fraction=others)
    assert busy_cores(host, SEVERAL) is None
    assert (busy_cores(host, SEVERAL, has_short_calls=True) is not None) is is_marked


@pytest.mark.parametrize(
    ("fraction", "expected"),
    [(0.15, busy_host(": other virtual machines took 15 % of the cores' time")), (0.1, None)],
)
def test_time_that_other_virtual_machines_took(fraction, expected):
    host = replace(QUIET, stolen_fraction=fraction)
    assert busy_cores(host, SEVERAL) == stolen_time(host) == expected
    assert stolen_time(replace(host, all_cores_matter=False)) is None


WAITED = busy_host(": the process waited for a core for 40 % of its start")
HALF = busy_host(": other processes used 50 % of the cores")
STOLEN = busy_host(": other virtual machines took 20 % of the cores' time")


@pytest.mark.parametrize(
    ("use", "waited", "on_cpu", "on_cuda"),
    [
        (CoreUse(4.0, 0.08, 0.04), 0.01, None, None),
        (CoreUse(8.0, 4.0, 0.0), 0.04, HALF, None),
        (CoreUse(8.0, 4.0, 0.0), 0.4, HALF, WAITED),
        (CoreUse(64.0, 2.0, 0.0), 0.4, WAITED, WAITED),
        (CoreUse(4.0, 0.0, 0.8), 0.0, STOLEN, STOLEN),
    ],
    ids=["idle", "a loop on another core", "a loop on each core", "many cores", "stolen"],
)
def test_a_cold_start_is_marked_if_others_used_its_cores(use, waited, on_cpu, on_cuda):
    assert of_cold_start(use, waited, SEVERAL, on_cuda=False) == on_cpu
    assert of_cold_start(use, waited, SEVERAL, on_cuda=True) == on_cuda
    assert of_cold_start(use, waited, Rules(host_tolerance=1000.0), on_cuda=False) is None
