"""Experiments that are really run on the CPU: what is measured, what is reused, what is judged and
kept."""

import tempfile
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_sweeps import DEFAULT, EAGER, environment, sql

from effbench.claims import run as running
from effbench.claims.definition import find, load
from effbench.claims.run import Reproduction, earlier
from effbench.config import cells as plan
from effbench.config.launch import hydra_sweep
from effbench.run.client import ForkServer
from effbench.run.probe import describe_machine
from effbench.store import Store
from effbench.store.decisions import ClaimVerdict as Verdict

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

from effbench.claims import Answer, Claim, by, geomean, mean, where
from effbench.claims.checks import check

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


@check()
def counted(device, start=3):
    return {"numbers": [start, start + 1], "none": None, "inner": {"a": {"x": 1}, "b": {"x": 2}}}


@Claim("slower", "Repeating is slower")
def slower(rows):
    repeated = where(rows, mode="repeated")
    gains = by(repeated, ["bs"], lambda part: geomean(part.speedup))
    also = {"all of them": rows.speedup, "largest": rows.bs.max()}
    holds = {label: gain.below(0.9) for label, gain in gains.items()}
    return Answer(holds, geomean(repeated.speedup), also)


@Claim("counts", "It counts")
def counts(counted):
    value = mean(counted.numbers) * 2
    also = {"x": [part.x for part in counted.inner.values()], "none": counted.none}
    return Answer(value.within(7, 7), value, also)


about = Claim("about", "Words", not_measurable="it is about words")


@Claim("gpu", "Of GPUs", needs="cuda")
def of_gpus(rows):
    return True


@Claim("mistaken", "It has a mistake")
def mistaken(rows):
    return rows.nothing
'''


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """Runs the experiment in a folder with a mode and `mine.py`, in one fork server."""
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
            probed = describe_machine(server, "cpu")
            experiment = load(Path("mine.py"))

            def run(*words, fresh=False):
                done = Reproduction(
                    experiment, server, probed, "x.db", [*QUICK, *words], fresh, quiet=True
                )
                done.execute()
                return done

            yield run


def stored():
    with Store.open("x.db") as store:
        return {row["claim"]: row for row in store.verdicts()}, store.sweeps()


@pytest.fixture(scope="module")
def measured(mine):
    """The experiment, run once, and what is stored of it."""
    done = mine()
    rows, (sweep,) = stored()
    return SimpleNamespace(done=done, rows=rows, sweep=sweep)


@pytest.mark.parametrize(
    ("claim", "verdict", "reason"),
    [
        ("slower", Verdict.CONFIRMED, "holds for bs=1, bs=2"),
        ("counts", Verdict.CONFIRMED, "holds"),
        ("about", Verdict.NOT_MEASURABLE, "it is about words"),
        ("gpu", Verdict.NOT_MEASURABLE, running.NO_CUDA),
        ("mistaken", Verdict.NOT_MEASURED, "it cannot be judged: AttributeError"),
    ],
)
def test_all_kinds_of_claims(measured, claim, verdict, reason):
    row = measured.rows[claim]
    assert row["verdict"] == verdict
    assert row["reason"].startswith(reason)


def test_what_is_stored_of_a_claim_about_rows(measured):
    row, sweep = measured.rows["slower"], measured.sweep
    facts = row["measured"]
    assert row["sweep_id"] == sweep.id
    assert sweep.name == "mine"
    assert facts["sweeps"] == [sweep.id]
    assert 0 < facts["low"] <= facts["value"] < 0.9
    assert facts["evidence"] == {}
    parts = [(part["label"], part["holds"]) for part in facts["parts"]]
    assert parts == [("bs=1", True), ("bs=2", True)]
    assert len(facts["also"]["all of them"]) == 4
    assert facts["also"]["largest"] == 2


def test_what_is_stored_of_a_claim_about_a_check(measured):
    row = measured.rows["counts"]
    assert row["sweep_id"] is None, "it rests on a check alone"
    assert row["measured"]["also"] == {"x": [1, 2], "none": None}
    assert list(row["measured"]["evidence"]) == ["counted"]


def test_nothing_is_measured_twice(measured, mine):
    again = mine()
    assert again.reused == 4
    assert again.results == measured.done.results
    assert len(stored()[1]) == 1


def test_ctrl_c_judges_nothing(measured, mine, monkeypatch):
    def stopped(jobs, command):
        command.stop.set()
        return original(jobs, command)

    original = plan.conduct
    monkeypatch.setattr(plan, "conduct", stopped)
    before = stored()[0]
    with pytest.raises(KeyboardInterrupt):
        mine(fresh=True)
    assert stored()[0] == before


PROTOCOL = SimpleNamespace(name="standard", rounds=5)
SETTINGS = SimpleNamespace(protocol=PROTOCOL, baseline_mode="eager")


def reused(made, settings=SETTINGS):
    """The sweep whose results would be used again."""
    with Store.open(made.path) as store:
        keys = [EAGER.key, DEFAULT.key]
        results = earlier(store, keys, environment().id, settings)
    if not results:
        return None
    assert [result.cell_key for result in results] == keys
    return results[0].sweep_id


def test_the_newest_sweep_on_a_quiet_host_is_reused(made):
    quiet = made.sweep([EAGER, DEFAULT])
    made.sweep({EAGER: {}, DEFAULT: {"disturbance": "host busy"}})
    assert reused(made) == quiet


def test_imported_sweeps_come_last(made):
    own, imported = made.sweep([EAGER, DEFAULT]), made.sweep([EAGER, DEFAULT])
    sql(made.path, f"UPDATE sweep SET imported_at = started_at WHERE id = '{imported}'", rows=1)
    assert reused(made) == own


@pytest.mark.parametrize(
    "changed", [{"baseline_mode": "default"}, {"protocol": SimpleNamespace(rounds=3)}]
)
def test_a_sweep_measured_otherwise_is_not_reused(made, changed):
    made.sweep([EAGER, DEFAULT])
    assert reused(made, SimpleNamespace(**vars(SETTINGS) | changed)) is None


def test_an_incomplete_sweep_is_not_reused(made):
    made.sweep([EAGER])
    made.sweep([EAGER, DEFAULT], state="interrupted")
    assert reused(made) is None


@pytest.mark.slow
@pytest.mark.parametrize("experiment", find(["all"]), ids=lambda experiment: experiment.name)
def test_shipped_sweeps_can_be_planned(experiment):
    planned = []

    def only_plan(jobs, command):
        parts, _ = plan.split(jobs)
        planned.extend(plan.resolve(parts, has_cuda=True))

    for words in experiment.sweeps.values():
        hydra_sweep(
            list(words),
            quiet=True,
            conductor=only_plan,
            server=object(),
        )
    assert bool(planned) is bool(experiment.sweeps)
