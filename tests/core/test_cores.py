"""The CPU cores of this machine, as the kernel lists them."""

import pytest

from effbench.core.cores import parse_cores, physical_cores


@pytest.mark.parametrize(
    ("text", "cores"),
    [("0-3,8\n", [0, 1, 2, 3, 8]), ("8, 10-11 ,2", [2, 8, 10, 11]), ("1-2,2-3", [1, 2, 3])],
)
def test_a_list_of_cores_is_read(text, cores):
    assert parse_cores(text) == cores


PAIRS = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}


@pytest.mark.parametrize(
    ("siblings", "usable", "cores"),
    [
        (PAIRS, range(4), [(0, 2), (1, 3)]),
        (PAIRS, [0, 1, 3], [(0,), (1, 3)]),
        ({0: "x", 1: ""}, range(2), [(0,), (1,)]),
        ({0: "1", 1: "1"}, range(2), [(0, 1)]),
    ],
    ids=["pairs", "one thread is usable", "unreadable", "without its thread"],
)
def test_hardware_threads_are_grouped_by_physical_core(tmp_path, siblings, usable, cores):
    for thread, text in siblings.items():
        folder = tmp_path / f"cpu{thread}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{text}\n")
    assert physical_cores(usable, tmp_path) == cores
