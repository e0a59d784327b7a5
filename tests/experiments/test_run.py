"""Experiments that are really run on the CPU: what is measured, what is reused, what is judged and
kept."""

import dataclasses
import tempfile
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from effbench.experiments import run as running
from effbench.experiments.definition import load, load_all
from effbench.experiments.run import Machine, Run
from effbench.launcher import cells as plan
from effbench.launcher.launch import hydra_sweep
from effbench.store import Store
from effbench.store.decisions import ClaimVerdict as Verdict
from effbench.sweeping.client import ForkServer

OWN = """
from effbench.modes.base import Mode, Prepared

class Repeated(Mode):
    def __init__(self, times=40):
        self.times = times

    def prepare(self, module, args, kwargs):
        def step(*args, **kwargs):
            for _ in range(self.times):
                found = module(*args, **kwargs)
            return found
        return Prepared(step, facts={"times": self.times})
"""
MODE = (
    "name: repeated\ndescription: calls it again and again\n_target_:"
    " effbench_test_own_mode.Repeated\ntimes: 60\n"
)
QUICK = [
    "protocol.budget_s=0.1",
    "protocol.min_time_s=0",
    "protocol.warmup_s=0.01",
    "device=cpu",
    "protocol.host_tolerance=1000",
]
EXPERIMENT = '''"""What does repeating cost?"""

from effbench.experiments import Answer, Claim, Pivot, geomean, mean, where
from effbench.experiments.checks import check

GPU_SECONDS = 1
SWEEPS = {
    "main": [
        "--config-dir=own_conf",
        "model=tiny",
        "bs=1,2",
        "mode=eager,repeated",
        "protocol.rounds=3",
    ]
}
TABLES = [Pivot("Speedup", "speedup", unit="×")]


@check()
def counted(device, start=3):
    return {"numbers": [start, start + 1], "none": None, "inner": {"a": {"x": 1}, "b": {"x": 2}}}


@Claim("slower", "Repeating is slower", each="bs")
def slower(rows):
    gain = geomean(where(rows, mode="repeated").speedup)
    return Answer(gain.below(0.9), gain, {"all of them": rows.speedup, "largest": rows.bs.max()})


@Claim("counts", "It counts")
def counts(counted):
    value = mean(counted.numbers) * 2
    also = {"x": [part.x for part in counted.inner.values()], "none": counted.none}
    return Answer(value.within(7, 7), value, also)


about = Claim("about", "Words", not_measurable="it is about words")


@Claim("gpu", "Of GPUs", needs="cuda")
def of_gpus(rows):
    return True
'''


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A folder with a mode and `mine.py` as the working directory; one fork server for all."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "effbench_test_own_mode.py").write_text(OWN, encoding="utf-8")
    (folder / "own_conf" / "mode").mkdir(parents=True)
    (folder / "own_conf" / "mode" / "repeated.yaml").write_text(MODE, encoding="utf-8")
    (folder / "mine.py").write_text(EXPERIMENT, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        # two threads wait for each other while another test has a core
        patch.setenv("OMP_NUM_THREADS", "1")
        with closing(ForkServer(folder=str(folder))) as server:
            patch.chdir(folder)
            # locks: no other effbench keeps us waiting
            patch.setattr(tempfile, "tempdir", str(folder))
            patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
            yield Machine.here(server, "cpu")


@pytest.fixture
def db(tmp_path):
    return str(tmp_path / "x.db")


@pytest.fixture(scope="module")
def mine(machine):
    return load(Path("mine.py"))


@pytest.fixture
def bare(mine):
    """With one claim, which asks for no check."""
    return dataclasses.replace(mine, claims=mine.claims[:1])


@pytest.fixture
def go(machine, db):
    return lambda one, *words, fresh=False: Run(
        one, machine, db, [*QUICK, *words], fresh, quiet=True
    ).execute()


def stored(db):
    with Store.open(db) as store:
        return {row["claim"]: row for row in store.verdicts()}, store.sweeps()


@pytest.fixture(scope="module")
def measured(machine, mine, tmp_path_factory):
    """The experiment, run once: its database, and what is stored there."""
    db = str(tmp_path_factory.mktemp("measured") / "x.db")
    done = Run(mine, machine, db, QUICK, quiet=True).execute()
    rows, (sweep,) = stored(db)
    return SimpleNamespace(db=db, done=done, rows=rows, sweep=sweep)


@pytest.mark.parametrize(
    ("claim", "verdict", "reason"),
    [
        ("slower", Verdict.CONFIRMED, "holds for bs=1, bs=2"),
        ("counts", Verdict.CONFIRMED, "holds"),
        ("about", Verdict.NOT_MEASURABLE, "it is about words"),
        ("gpu", Verdict.NOT_MEASURABLE, running.NO_CUDA),
    ],
)
def test_all_kinds_of_claims(measured, claim, verdict, reason):
    (judged,) = [each for each in measured.done.judgements if each.claim.id == claim]
    row = measured.rows[claim]
    assert (judged.verdict, judged.reason) == (verdict, reason), judged.value
    assert (row["verdict"], row["reason"]) == (verdict, reason)


def test_what_is_stored_of_a_claim_about_rows(measured):
    row, sweep = measured.rows["slower"], measured.sweep
    facts = row["measured"]
    assert (row["sweep_id"], sweep.name, facts["sweeps"]) == (sweep.id, "mine", [sweep.id])
    assert 0 < facts["low"] <= facts["value"] < 0.9 and facts["evidence"] == {}
    parts = [(part["label"], part["holds"]) for part in facts["parts"]]
    assert parts == [("bs=1", True), ("bs=2", True)]
    assert len(facts["also"]["all of them"]) == 4 and facts["also"]["largest"] == 2


def test_what_is_stored_of_a_claim_about_a_check(measured):
    row = measured.rows["counts"]
    assert row["sweep_id"] is None, "it rests on a check alone"
    assert row["measured"]["also"] == {"x": [1, 2], "none": None}
    assert list(row["measured"]["evidence"]) == ["counted"]


def test_nothing_is_measured_twice(measured, mine, machine):
    again = Run(mine, machine, measured.db, QUICK, quiet=True).execute()
    assert (again.reused, again.rows) == (4, measured.done.rows)
    assert len(stored(measured.db)[1]) == 1


@pytest.fixture
def elsewhere(measured, machine):
    """The machine of the stored results, on which nothing runs."""
    with Store.open(measured.db) as store:
        return Machine.stored(machine.server, *store.environments())


def test_stored_results_are_judged_again(measured, mine, elsewhere):
    assert Run(mine, elsewhere, measured.db, QUICK).execute().missing == ""
    rows, sweeps = stored(measured.db)
    assert rows["slower"]["measured"] == measured.rows["slower"]["measured"]
    assert len(sweeps) == 1


def test_what_was_not_measured_is_not_judged(measured, mine, elsewhere):
    other = Run(mine, elsewhere, measured.db, [*QUICK, "bs=1,2,3"]).execute()
    assert "2 of 6 cells of the sweep main were not measured with" in other.missing
    assert not other.judgements
    renamed = dataclasses.replace(mine, name="other")
    other = Run(renamed, elsewhere, measured.db, QUICK).execute()
    assert "the facts of counted were not gathered" in other.missing


def test_fresh_results(go, db, bare):
    go(bare, "bs=1")
    assert go(bare, "bs=1", fresh=True).reused == 0 and len(stored(db)[1]) == 2


@pytest.mark.slow
def test_only_whole_cases_measured_in_the_same_way_are_reused(go, db, bare):
    go(bare, "bs=1")
    go(bare, "bs=2", "mode=eager")
    done = go(bare)
    assert done.reused == 2
    order = [(row.bs, row.mode) for row in done.rows["main"]]
    assert order == [(1, "eager"), (1, "repeated"), (2, "eager"), (2, "repeated")]
    assert stored(db)[1][0].cells == 2, "the case that lacked a mode is measured whole"
    assert (
        done.judgements[0].verdict == Verdict.CONFIRMED
        and len({row.sweep_id for row in done.rows["main"]}) == 2
    )
    less = go(bare, "exclude=[{mode:repeated,bs:2}]")
    assert (less.reused, len(less.rows["main"])) == (3, 3)
    for override in ("protocol.rounds=2", "baseline_mode=repeated", "model.module.width=16"):
        assert go(bare, override).reused == 0


@pytest.mark.slow
def test_unfinished_cases_are_not_reused(go, db, bare):
    go(bare)
    engine = sa.create_engine(f"sqlite:///{db}")
    with engine.begin() as connection:  # as if it had been stopped before the last trial of bs=2
        connection.exec_driver_sql("UPDATE sweep SET state = 'interrupted'")
        key = connection.exec_driver_sql(
            "SELECT key FROM cell WHERE bs = 2 AND mode = 'eager'"
        ).scalar()
        connection.execute(
            sa.text("UPDATE result SET trials = 1 WHERE cell_key = :key"), {"key": key}
        )
    engine.dispose()
    done = go(bare)
    assert done.reused == 2 and {row.bs for row in done.rows["main"][:2]} == {1}
    with engine.begin() as connection:  # as if it had had less time than now
        connection.execute(
            sa.text("UPDATE result SET status = 'timeout' WHERE cell_key = :key"), {"key": key}
        )
    engine.dispose()
    assert go(bare, "timeout_s=0.001").reused == 4 and go(bare).reused == 2


def test_a_database_with_quotes_in_its_name(mine):
    assert r'db="a\"b.db"' in running.command_of(mine, "main", [], 'a"b.db')


def test_ctrl_c_judges_nothing(go, db, bare, monkeypatch):
    def stopped(jobs, command):
        command.stop.set()
        return original(jobs, command)

    original = plan.conduct
    monkeypatch.setattr(plan, "conduct", stopped)
    done = go(bare)
    assert done.interrupted and done.judgements == []
    assert stored(db)[0] == {}


@pytest.mark.slow
def test_shipped_sweeps_can_be_planned_and_have_their_parameters():
    for outline in load_all():
        planned = []

        def only_plan(jobs, command, planned=planned):
            parts, _ = plan.split(jobs)
            planned.extend(plan.resolve(parts, has_cuda=True))

        for words in outline.sweeps.values():
            before = len(planned)
            assert (
                hydra_sweep(list(words), quiet=True, conductor=only_plan, server=object()) is None
            )
            assert len(planned) > before
        for path in outline.swept.values():
            held = [cell.params() for cell in planned]
            for part in path.split("."):
                held = [inner[part] for inner in held if part in inner]
            assert held, f"no cell of {outline.name} has {path}"
