"""Which cores the trials of each GPU get."""

from __future__ import annotations

from pathlib import Path

import pytest

from effbench.errors import ConfigError
from effbench.sweep.devices import parse_cores, share_out, wanted_cores

ALL = range(16)
#: A machine that does not say which threads share a core.
NOWHERE = Path("/nowhere")


def gpus(*near):
    return [{"index": index, "near_cores": cores} for index, cores in enumerate(near)]


@pytest.mark.parametrize(
    ("setting", "near", "usable", "shares"),
    [
        (None, ["0-15"], ALL, [None]),
        ("auto", ["0-15"], ALL, [list(range(1, 16))]),
        ("auto", [None], ALL, [list(range(1, 16))]),
        ("auto", ["0-15", "0-15"], ALL, [list(range(1, 8)), list(range(8, 16))]),
        # two sockets: each GPU on its own side
        ("auto", ["0-7", "8-15"], ALL, [list(range(1, 8)), list(range(8, 16))]),
        ("auto", ["8-15", "0-7", "8-15"], ALL, [[8, 9, 10, 11], list(range(1, 8)), [12, 13, 14, 15]]),
        # near cores that we may not use: any that we may
        ("auto", ["8-15"], range(4), [[1, 2, 3]]),
        ("auto", ["0-1", "0-1"], [0, 1], [[0], [1]]),
        ("auto", ["0", "0"], [0], [None, None]),
        ("2-5", ["0-15"], ALL, [[2, 3, 4, 5]]),
        ([2, 3, 8, 9], ["0-15", "0-15"], ALL, [[2, 3], [8, 9]]),
        (3, ["0-15"], ALL, [[3]]),
        ("auto", ["what?"], range(2), [[0, 1]]),
        ("auto", [], ALL, []),
    ],
)
def test_shares(setting, near, usable, shares):
    found = share_out(setting, gpus(*near), usable, NOWHERE)
    assert found == shares
    given = [core for share in found for core in share or ()]
    assert len(given) == len(set(given)), "no core serves two GPUs"


@pytest.mark.parametrize(
    ("siblings", "setting", "near", "usable", "shares"),
    [
        # threads numbered by core, then by thread; the first core is spared only where a GPU has four
        (["0,4", "1,5", "2,6", "3,7"], "auto", [None, None], range(8), [[1, 4, 5], [2, 3, 6, 7]]),
        (["0,4", "1,5", "2,6", "3,7"], "auto", [None], range(8), [[1, 2, 3, 5, 6, 7]]),
        (["0-1", "2-3", "4-5", "6-7"], "auto", [None, None], range(8), [[1, 2, 3], [4, 5, 6, 7]]),
        (["0-1", "2-3", "4-5", "6-7"], "auto", [None], range(8), [[2, 3, 4, 5, 6, 7]]),
        # two NUMA nodes
        (
            [f"{core},{core + 8}" for core in range(8)], "auto", ["0-3,8-11", "4-7,12-15"], ALL,
            [[1, 2, 3, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]],
        ),
        # only one thread of some cores may be used
        (["0,4", "1,5", "2,6", "3,7"], "auto", [None, None], [0, 1, 2, 3, 4], [[0, 1, 4], [2, 3]]),
        (["0,4", "1,5", "2,6", "3,7"], "1,2,5", [None, None], range(8), [[1, 5], [2]]),
        (["0,4", "1,5", "2,6", "3,7"], "auto", [None] * 3, range(8), [[0, 4], [1, 5], [2, 6]]),
        (["0-1", "2-3"], "auto", [None] * 3, range(4), [None, None, None]),
        # not known of every thread, or nonsense
        (["0-1", "2-x"], "auto", [None, None], range(4), [[0, 1], [2]]),
    ],
)  # fmt: skip
def test_a_physical_core_serves_one_gpu(tmp_path, siblings, setting, near, usable, shares):
    for line in siblings:
        for thread in parse_cores(line.replace("x", "3")):
            folder = tmp_path / f"cpu{thread}" / "topology"
            folder.mkdir(parents=True)
            (folder / "thread_siblings_list").write_text(f"{line}\n")
    assert share_out(setting, gpus(*near), usable, tmp_path) == shares


@pytest.mark.parametrize("near", [["", "0-7"], ["0-15", "8-15", "0-15"]])
def test_no_core_serves_two_gpus_that_are_near_overlapping_ones(near):
    shares = share_out("auto", gpus(*near), range(16), NOWHERE)
    given = [core for share in shares for core in share or ()]
    assert len(given) == len(set(given)) >= 12


@pytest.mark.parametrize(
    ("setting", "said"),
    [("17", r"\[17\]"), ("4-2", "4-2"), ("one", "'one'"), ([], "none"), ({"a": 1}, "use auto"), ("1,,2", "use auto")],
)
def test_what_is_refused(setting, said):
    with pytest.raises(ConfigError, match=said):
        wanted_cores(setting, ALL)


def test_the_kernels_notation():
    assert parse_cores("0-3,8, 10-11") == [0, 1, 2, 3, 8, 10, 11]
