"""exclude, shard and --dry-run on the command line."""

import pytest
from made_sweeps import sql

from effbench.store import Store

WORDS = (
    "--config-dir=conf",
    "model=tiny",
    "bs=1,2",
    "mode=eager,twin",
    "sweep.name=n",
    "sweep.label=v1",
)
RULES = 'exclude=[{mode:twin,bs:">1"},{bs:77}]'


def with_twin(cli):
    """Return a command line with a second mode that needs no compiler."""
    modes = cli.folder / "conf" / "mode"
    modes.mkdir(parents=True)
    (modes / "twin.yaml").write_text("name: twin\n_target_: effbench.modes.eager.Eager\n")
    return cli


@pytest.fixture
def cli(cli):
    return with_twin(cli)


@pytest.fixture(scope="module")
def ran(cli_in, tmp_path_factory):
    """A command line whose database has a sweep of three cells; tests only plan."""
    cli = with_twin(cli_in(tmp_path_factory.mktemp("ran")))
    assert cli.sweep(*WORDS, RULES).code == 0
    return cli


def test_a_plan_is_printed_and_nothing_runs(cli):
    done = cli.sweep(*WORDS, RULES, "--dry-run")
    assert (done.code, done.err) == (0, "")
    for said in (
        "3 cells × 1 round",
        "exclude removes 1 cell",
        " from the protocol and usual",
        "no cell matches the rule {bs: 77}",
    ):
        assert said in done.out
    assert not cli.db.exists()


def test_auto_is_the_device_of_the_jobs_of_a_cluster(cli):
    words = ("executor=slurm", "device=auto", "exclude=[{bs:1,device:cuda}]", "--dry-run")
    assert "2 cells × 1 round (quick) on SLURM" in cli.sweep(*WORDS, *words).out


def test_excluded_cells_do_not_run(ran):
    with Store.open(ran.db) as store:
        planned = store.planned(store.find_sweep("last").id)
    cells = {(cell.bs, cell.mode_name) for cell in planned}
    assert cells == {(1, "eager"), (2, "eager"), (1, "twin")}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "on CPU: all trials are already recorded"),
        ("protocol.rounds=2", "3 cells × 2 rounds (quick) on CPU: 3 trials to run"),
        ("folder=.", "ran under effbench's own"),
        ("baseline_mode=twin", "has baseline_mode=eager, not twin"),
        ("sweep.seed=5", "has sweep.seed=0, not 5"),
        ("protocol.budget_s=9", "has protocol.budget_s=0.2, not 9.0"),
        ("protocol=standard", "has protocol=quick, not standard; "),
    ],
)
def test_the_plan_of_a_sweep_to_resume(ran, words, said):
    done = ran.run("-m", "resume=last", *words.split(), "--dry-run")
    assert said in done.out + done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", ", as earlier trials took\n"),
        ("shard=1/2", "shard 1/2: 2 cells in other shards"),
        ("protocol.budget_s=0.3", "from the protocol and"),
    ],
)
def test_durations_are_those_of_earlier_trials(ran, words, said):
    assert said in ran.sweep(*WORDS, *words.split(), "--dry-run").out


def test_rounds_are_added_and_other_software_runs_all_again(cli):
    assert cli.sweep("model=tiny", "bs=1,2", "sweep.name=n").code == 0
    done = cli.run("-m", "resume=n", "protocol.rounds=3")
    assert "gets 2 more rounds: 3 in total\n" in done.out
    assert "2 cells × 3 rounds (quick) on CPU: 4 trials to run" in done.out
    with Store.open(cli.db) as store:
        (sweep,) = store.sweeps()
        assert (sweep.rounds, sweep.trials) == (3, 6)
    refused = cli.run("-m", "resume=n", "protocol.rounds=2")
    assert "has 3 rounds, more than 2: omit protocol.rounds, or give more" in refused.err
    sql(cli.db, "UPDATE sweep SET host = replace(host, (SELECT id FROM environment), 'other')")
    sql(cli.db, "UPDATE trial SET environment_id = 'other'")
    again = cli.run("-m", "resume=last", "--dry-run")
    assert "software has changed since the recorded trials: all cells run again\n" in again.out


def test_a_plan_for_a_database_that_no_sweep_could_use_is_refused(cli):
    cli.db.parent.mkdir()
    cli.db.write_text("latency_ms,period_ms\n" * 400)
    done = cli.sweep(*WORDS, "--dry-run")
    assert (done.code, done.out) == (2, "")
    assert "not a database" in done.err


def test_a_baseline_that_is_excluded_is_refused(cli):
    rules = ("mode=eager,twin", "baseline_mode=twin", "--dry-run", "exclude=[{mode:tw*}]")
    said = "baseline_mode=twin is not a mode of this sweep after exclude"
    assert said in cli.sweep(*WORDS, *rules).err


@pytest.fixture(scope="module")
def sharded(cli_in, tmp_path_factory):
    """A command line whose databases 1.db and 2.db have a shard of a sweep each."""
    cli = with_twin(cli_in(tmp_path_factory.mktemp("sharded")))
    for number in (1, 2):
        done = cli.sweep(*WORDS, f"shard={number}/2", f"db={number}.db")
        assert (done.code, "2 ok of 2 cells" in done.out) == (0, True), done
    return cli


@pytest.mark.parametrize("sources", [("2.db", "1.db"), ("1.db", "2.db")])
def test_shards_become_one_sweep(sharded, sources, tmp_path):
    db = tmp_path / "both.db"
    assert sharded.run("import", *sources, "--db", str(db)).code == 0
    with Store.open(db) as store:
        (sweep,) = store.sweeps()
        assert (sweep.name, sweep.cells, sweep.statuses) == ("n", 4, {"ok": 4})
        assert all(row.speedup for row in store.results(sweep.id))
    assert sharded.run("baseline", "set", "good", "last", "--db", str(db)).code == 0
    assert sharded.run("db", "check", "--db", str(db)).code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [("shard=1/3", "has no shard 1/3, only 2/2"), ("", "all trials are already recorded")],
)
def test_a_shard_is_resumed(sharded, words, said):
    done = sharded.run("-m", "resume=last", "db=2.db", *words.split())
    assert said in done.out + done.err
