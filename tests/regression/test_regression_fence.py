"""What earlier sweeps say of the noise is not spoiled by what is no sweep of the same line in the same environment."""

from __future__ import annotations

import csv
import io
import json
import re
from xml.etree import ElementTree

import pytest
from made_sweeps import a_cell, environment, spread

CELL = a_cell()
#: What two sweeps of an unchanged cell differ by, and what a pull request costs.
NOISE, SLOWER = 0.002, 1.1
OLD, NEW = environment(torch_version="2.11.0"), environment(torch_version="2.13.0")


@pytest.fixture
def sweep(made):
    """A sweep of one cell; each has noise of its own."""
    seeds = iter(range(1000))

    def call(level, name=None, env=None):
        return made.sweep({CELL: {"latency_ms": spread(level, NOISE, seed=next(seeds))}}, name=name, env=env)

    return call


@pytest.fixture
def judged(effbench):
    """The latency's row of a comparison."""

    def call(before, after):
        rows = json.loads(effbench("compare", before, after, "--all", "--format", "json").out)["changes"]
        (row,) = [one for one in rows if one["metric"] == "latency_ms"]
        return row

    return call


def test_pull_requests_are_no_noise_of_the_main_line(sweep, judged):
    """Main and pull requests in turns, each pull request run again: the fence is that of main."""
    for number in range(8):
        before = sweep(1.0, "main")
        after = sweep(SLOWER, f"pr-{number}")
        sweep(SLOWER * 1.2, f"confirm:{after}")
    row = judged(before, after)
    assert (row["verdict"], row["reason"]) == ("slower", None)
    assert 0.02 <= row["limit"] < 0.03


def test_re_runs_are_no_noise_of_sweeps_without_a_name(sweep, judged):
    for _ in range(8):
        before = sweep(1.0)
        sweep(1.3, f"confirm:{before}")
    row = judged(before, sweep(SLOWER))
    assert (row["verdict"], row["limit"]) == ("slower", pytest.approx(0.02, abs=0.01))


def test_two_environments_in_turns_are_no_noise(sweep, judged):
    for _ in range(6):
        before, after = sweep(1.0, env=OLD), sweep(SLOWER, env=NEW)
    row = judged(before, after)
    assert (row["verdict"], row["reason"]) == ("slower", None)


def test_noise_of_the_line_itself_is_its_fence(sweep, judged):
    """The levels of main move by 5 %: what a pull request of 10 % shows is open, and not the same."""
    for number in range(10):
        before = sweep(1.05 ** (number % 2), "main")
    row = judged(before, sweep(1.05 * SLOWER, "pr"))
    assert row["verdict"] == "ambiguous" and row["limit"] > 0.15
    assert re.fullmatch(r"beyond the floor of 2.0 %, but inside the noise fence of \d+ % that .*", row["reason"])
    # held against a sweep of another line, it is slower: that one has no fence yet
    assert judged(sweep(1.05, "other"), sweep(1.05 * SLOWER, "pr"))["verdict"] == "slower"


class TestFormats:
    """The row and the reason in every format."""

    SAID = "inside the noise fence of 50 %"

    @pytest.fixture
    def two(self, sweep):
        for number in range(10):
            before = sweep(1.0 + 0.2 * (number % 2))
        return before, sweep(1.2 * SLOWER)

    @pytest.mark.parametrize("words", [[], ["--format", "markdown"]])
    def test_text(self, two, effbench, words):
        done = effbench("compare", *two, *words)
        (line,) = [one for one in done.out.splitlines() if "latency_ms" in one]
        assert "~ ambiguous" in line and self.SAID in line
        note = "1 row changed beyond the floor, but inside the noise fence that the earlier sweeps without a name give"
        assert note in done.out

    def test_data(self, two, effbench):
        notes = json.loads(effbench("compare", *two, "--format", "json").out)["notes"]
        assert [self.SAID[:22] in note for note in notes] == [True]
        (row,) = [
            one
            for one in csv.DictReader(io.StringIO(effbench("compare", *two, "--format", "csv").out))
            if one["metric"] == "latency_ms"
        ]
        assert row["verdict"] == "ambiguous" and self.SAID in row["reason"]
        tree = ElementTree.fromstring(effbench("compare", *two, "--format", "junit").out)
        assert [self.SAID in one.attrib["message"] for one in tree.iter("skipped")] == [True]

    @pytest.mark.parametrize("words", [[], ["--format", "markdown"]])
    def test_check_passes_and_says_so(self, two, effbench, words):
        assert effbench("baseline", "set", "main", two[0]).code == 0
        done = effbench("check", "--baseline", "main", *words)
        assert done.code == 0
        assert "1 of 12 rows could not be judged" in done.out and self.SAID in done.out
