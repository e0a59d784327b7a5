"""Experiments that are really run on the CPU: what is measured, what is reused, what is judged and
kept."""

import dataclasses
import tempfile
from contextlib import closing
from pathlib import Path

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
    return Answer(gain.below(0.9), gain, {"all of them": list(rows.speedup)})


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


def test_all_kinds_of_claims(go, db, mine, machine):
    done = go(mine)
    found = {judgement.claim.id: judgement for judgement in done.judgements}
    assert {name: str(one.verdict) for name, one in found.items()} == {
        "slower": "confirmed",
        "counts": "confirmed",
        "about": "not measurable here",
        "gpu": "not measurable here",
    }, (found["slower"].reason, found["slower"].value)
    assert (
        found["slower"].reason == "holds for bs=1, bs=2" and found["gpu"].reason == running.NO_CUDA
    )
    assert 0 < found["slower"].value.low <= found["slower"].value.value < 0.9
    rows, (sweep,) = stored(db)
    assert (rows["gpu"]["reason"], rows["about"]["reason"]) == (
        running.NO_CUDA,
        "it is about words",
    )
    assert {name: row["verdict"] for name, row in rows.items()} == {
        n: str(one.verdict) for n, one in found.items()
    }
    measured = rows["slower"]["measured"]
    assert (rows["slower"]["sweep_id"], sweep.name, measured["sweeps"]) == (
        sweep.id,
        "mine",
        [sweep.id],
    )
    assert measured["value"] == found["slower"].value.value and measured["evidence"] == {}
    assert [(part["label"], part["holds"]) for part in measured["parts"]] == [
        ("bs=1", True),
        ("bs=2", True),
    ]
    assert len(measured["also"]["all of them"]) == 4
    assert rows["counts"]["sweep_id"] is None, "it rests on a check alone"
    measured = rows["counts"]["measured"]
    assert (measured["also"], list(measured["evidence"])) == (
        {"x": [1, 2], "none": None},
        ["counted"],
    )

    second = go(mine)
    assert (second.reused, second.rows, len(stored(db)[1])) == (
        4,
        done.rows,
        1,
    ), "nothing is measured twice"

    # judged again from what is stored: nothing runs, and the verdicts are the same
    with Store.open(db) as store:
        elsewhere = Machine.stored(machine.server, *store.environments())
    assert Run(mine, elsewhere, db, QUICK).execute().missing is None and len(stored(db)[1]) == 1
    assert stored(db)[0]["slower"]["measured"] == rows["slower"]["measured"]
    other = Run(mine, elsewhere, db, [*QUICK, "bs=1,2,3"]).execute()
    assert (
        "2 of 6 cells of the sweep main were not measured with" in other.missing
        and not other.judgements
    )
    renamed = Run(dataclasses.replace(mine, name="other"), elsewhere, db, QUICK).execute()
    assert "the facts of counted were not gathered" in renamed.missing
    assert go(mine, "bs=1", fresh=True).reused == 0 and len(stored(db)[1]) == 2


@pytest.mark.slow
def test_only_whole_cases_measured_in_the_same_way_are_reused(go, db, bare):
    go(bare, "bs=1")
    go(bare, "bs=2", "mode=eager")
    done = go(bare)
    assert done.reused == 2
    order = [(row["bs"], row["mode"]) for row in done.rows["main"]]
    assert order == [(1, "eager"), (1, "repeated"), (2, "eager"), (2, "repeated")]
    assert stored(db)[1][0].cells == 2, "the case that lacked a mode is measured whole"
    assert (
        done.judgements[0].verdict == Verdict.CONFIRMED
        and len({row["sweep_id"] for row in done.rows["main"]}) == 2
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
    assert done.reused == 2 and {row["bs"] for row in done.rows["main"][:2]} == {1}
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
