"""exclude and --dry-run on the command line."""

import shutil

import pytest
from made_sweeps import sql

from effbench.store import Store

WORDS = (
    "model=tiny",
    "bs=1,2",
    "mode=eager,twin",
    "sweep.name=n",
    "sweep.label=v1",
)
RULES = 'exclude=[{mode:twin,bs:">1"},{bs:77}]'


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """The words of a sweep with a second mode that needs no compiler."""
    folder = tmp_path_factory.mktemp("conf")
    (folder / "mode").mkdir()
    twin = folder / "mode" / "twin.yaml"
    twin.write_text("name: twin\n_target_: effbench.modes.eager.Eager\n")
    return (f"--config-dir={folder}", *WORDS)


@pytest.fixture(scope="module")
def ran(cli_in, words, tmp_path_factory):
    """A command line whose database has a sweep of three cells; tests only plan."""
    cli = cli_in(tmp_path_factory.mktemp("ran"))
    assert cli.sweep(*words, RULES).code == 0
    return cli


def test_a_plan_is_printed_and_nothing_runs(cli, words):
    done = cli.sweep(*words, RULES, "--dry-run")
    assert (done.code, done.err) == (0, "")
    assert "3 cells × 1 round" in done.out
    assert "exclude removes 1 cell" in done.out
    assert " from the protocol and usual" in done.out
    assert "no cell matches the rule {'bs': 77}" in done.out
    assert not cli.db.exists()


def test_auto_is_the_device_of_the_jobs_of_a_cluster(cli, words):
    more = ("executor=slurm", "device=auto", "exclude=[{bs:1,device:cuda}]", "--dry-run")
    assert "2 cells × 1 round (quick) on SLURM" in cli.sweep(*words, *more).out


def test_excluded_cells_do_not_run(ran):
    with Store.open(ran.db) as store:
        planned = store.planned(store.find_sweep("last").id)
    cells = {(cell.bs, cell.mode_name) for cell in planned}
    assert cells == {(1, "eager"), (2, "eager"), (1, "twin")}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", "on CPU: all trials are already recorded"),
        ("protocol.rounds=2", "3 cells × 2 rounds (quick) on CPU: 3 trials to run"),
        ("baseline_mode=twin", "has baseline_mode=eager, not twin"),
        ("sweep.seed=5", "has sweep.seed=0, not 5"),
        ("protocol=standard", "has protocol=quick, not standard; "),
    ],
)
def test_the_plan_of_a_sweep_to_resume(ran, more, said):
    done = ran.run("-m", "resume=last", *more.split(), "--dry-run")
    assert said in done.out + done.err


def test_other_software_runs_all_again(ran):
    old = shutil.copy(ran.db, ran.folder / "old.db")
    sql(old, "UPDATE sweep SET host = replace(host, (SELECT id FROM environment), 'other')")
    sql(old, "UPDATE trial SET environment_id = 'other'")
    done = ran.run("-m", "resume=last", "db=old.db", "--dry-run")
    assert "has changed since the recorded trials: all cells run again\n" in done.out


def test_a_baseline_that_is_excluded_is_refused(cli, words):
    rules = ("mode=eager,twin", "baseline_mode=twin", "--dry-run", "exclude=[{mode:twin}]")
    said = "baseline_mode=twin is not a mode of this sweep after exclude"
    assert said in cli.sweep(*words, *rules).err
