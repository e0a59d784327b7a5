"""The CPU cores of this machine, as the kernel lists them."""

import os

import pytest

from effbench.cores import parse_cores, physical_cores


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("0", [0]),
        ("0-3,8", [0, 1, 2, 3, 8]),
        ("0-3,8\n", [0, 1, 2, 3, 8]),
        ("8, 10-11 ,2", [2, 8, 10, 11]),
        ("1-2,2-3", [1, 2, 3]),
    ],
)
def test_a_list_of_cores_is_read(text, cores):
    assert parse_cores(text) == cores


@pytest.mark.parametrize("text", ["", "one", "4-2", "1,,2", "-1", "0-3-5"])
def test_what_is_no_list_of_cores_is_refused(text):
    with pytest.raises(ValueError, match=r".+"):
        parse_cores(text)


@pytest.fixture
def topology(tmp_path):
    """Makes a folder in which the kernel lists these siblings of each hardware thread."""

    def make(siblings):
        for thread, text in siblings.items():
            folder = tmp_path / f"cpu{thread}" / "topology"
            folder.mkdir(parents=True)
            (folder / "thread_siblings_list").write_text(f"{text}\n")
        return tmp_path

    return make


PAIRS = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}
TOPOLOGIES = {
    "pairs": (PAIRS, range(4), [(0, 2), (1, 3)]),
    "neighbours": ({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, range(4), [(0, 1), (2, 3)]),
    "one thread of a core is usable": (PAIRS, [0, 1, 3], [(0,), (1, 3)]),
    "no list": ({}, range(3), [(0,), (1,), (2,)]),
    "no list for some": ({0: "0-1", 1: "0-1"}, range(4), [(0, 1), (2,), (3,)]),
    "an unreadable list": ({0: "x", 1: ""}, range(2), [(0,), (1,)]),
    "a list without its own thread": ({0: "1", 1: "1"}, range(2), [(0, 1)]),
    "nothing is usable": (PAIRS, [], []),
}


@pytest.mark.parametrize(("siblings", "usable", "cores"), TOPOLOGIES.values(), ids=TOPOLOGIES)
def test_hardware_threads_are_grouped_by_physical_core(topology, siblings, usable, cores):
    assert physical_cores(usable, topology(siblings)) == cores


def test_the_cores_of_this_machine_are_those_that_this_process_may_use():
    usable = os.sched_getaffinity(0)
    cores = physical_cores(usable)
    assert sorted(thread for core in cores for thread in core) == sorted(usable)
