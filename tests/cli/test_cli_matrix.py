"""exclude, shard and --dry-run on the command line."""

import pytest
from made_sweeps import DEFAULT, EAGER, GRAPH, environment, sql
from whole_sweeps import info_of

from effbench.store import Store

WORDS = ("model=tiny", "bs=1,2", "mode=eager,jit-trace", "sweep.name=n", "sweep.label=v1")


RULES = 'exclude=[{mode:jit-trace,bs:">1"},{bs:77}]'


@pytest.fixture
def ran(cli):
    """A command line whose database has a sweep of three cells."""
    assert cli.sweep(*WORDS, RULES).code == 0
    return cli


def test_a_plan_is_printed_and_nothing_runs(cli):
    done = cli.sweep(*WORDS, RULES, "--dry-run")
    assert (done.code, done.err) == (0, ""), done
    assert "3 cells × 1 round" in done.out
    assert "exclude removes 1 cell" in done.out
    assert " from the protocol and usual" in done.out
    assert "no cell matches the rule {bs: 77}" in done.out
    assert not cli.db.exists()


def test_auto_is_the_device_of_the_jobs_of_a_cluster(cli):
    words = ("executor=slurm", "device=auto", "exclude=[{bs:1,device:cuda}]", "--dry-run")
    assert "2 cells × 1 round (quick) on SLURM" in cli.sweep(*WORDS, *words).out
    assert not cli.db.exists()


def test_excluded_cells_do_not_run(ran):
    with Store.open(ran.db) as store:
        planned = store.planned(store.find_sweep("last").id)
    cells = {(cell.bs, cell.mode_name) for cell in planned}
    assert cells == {(1, "eager"), (2, "eager"), (1, "jit-trace")}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], ["0 trials to run"]),
        (["protocol.rounds=2"], ["3 cells × 2 rounds", "3 trials to run"]),
        (["folder=."], ["ran under effbench's own"]),
        (["baseline_mode=jit-trace"], ["has baseline_mode=eager, not jit-trace"]),
        (["sweep.seed=5"], ["has sweep.seed=0, not 5"]),
    ],
    ids=" ".join,
)
def test_the_plan_of_a_sweep_to_resume(ran, words, said):
    done = ran.run("-m", "resume=last", *words, "--dry-run")
    assert all(text in done.out + done.err for text in said), done


def test_durations_are_those_of_earlier_trials(ran):
    def plan(*words):
        return ran.sweep(*WORDS, *words, "--dry-run").out

    known, unknown = ", as earlier trials took\n", "from the protocol and"
    assert known in plan() and "4 trials to run" in plan()
    part = plan("shard=1/2", "protocol.rounds=2")
    assert known.strip() in part and "shard 1/2: 2 cells in other shards" in part
    assert unknown in plan("protocol.budget_s=0.3"), "another protocol"
    sql(ran.db, "UPDATE environment SET cpu_name = 'another'")
    assert unknown in plan()


def test_all_cells_run_again_with_other_software(ran):
    sql(ran.db, "UPDATE sweep SET host = replace(host, (SELECT id FROM environment), 'other')")
    sql(ran.db, "UPDATE trial SET environment_id = 'other'")
    again = ran.run("-m", "resume=last", "--dry-run")
    assert "software has changed since the recorded trials: all cells run again\n" in again.out
    assert "3 trials to run" in again.out
    with Store.open(ran.db) as store:
        assert len(store.sweeps()) == 1


def test_rounds_that_are_not_needed_are_not_planned_again(cli):
    assert cli.sweep("model=tiny", "protocol.rounds=9", "protocol.enough_interval=99").code == 0
    for words, expected in (
        (["--dry-run"], "0 trials to run"),
        ([], "all trials are already recorded"),
    ):
        done = cli.run("-m", "resume=last", *words)
        assert (done.code, expected in done.out) == (0, True), done


def test_rounds_are_added_on_the_command_line(cli):
    assert cli.sweep("model=tiny", "bs=1,2", "sweep.name=n").code == 0
    done = cli.run("-m", "resume=n", "protocol.rounds=3")
    assert (done.code, "gets 2 more rounds: 3 in total\n" in done.out) == (0, True), done
    assert "2 cells × 3 rounds (quick) on CPU: 4 trials to run" in done.out
    with Store.open(cli.db) as store:
        (sweep,) = store.sweeps()
        assert (sweep.rounds, sweep.trials) == (3, 6)
        assert {row.trials for row in store.results(sweep.id)} == {3}
    assert "2 cells × 3 rounds (quick) on CPU: all trials are" in cli.run("-m", "resume=n").out
    for words, said in (
        (
            ["protocol.rounds=2"],
            "has 3 rounds, more than 2: omit protocol.rounds, or give more than 3 to add rounds",
        ),
        (
            ["protocol.budget_s=9"],
            "has protocol.budget_s=0.2, not 9.0: trials that are measured differently have no",
        ),
        (["protocol=standard"], "has protocol=quick, not standard: "),
    ):
        done = cli.run("-m", "resume=n", *words)
        assert (done.code, said in done.err) == (2, True), done
    assert cli.run("db", "check", "--deep").code == 0


def test_a_plan_for_a_database_that_no_sweep_could_use_is_refused(cli):
    cli.db.parent.mkdir()
    cli.db.write_text("latency_ms,period_ms\n" * 400)
    done = cli.sweep(*WORDS, "--dry-run")
    assert (done.code, done.out) == (2, "") and "not a database" in done.err


def test_a_baseline_may_be_excluded_in_part(cli):
    rules = ("mode=eager,jit-trace,cuda-graph", "baseline_mode=jit-trace", "--dry-run")
    done = cli.sweep(*WORDS, *rules, "exclude=[{mode:jit-trace,bs:1}]")
    assert (done.code, "removes the jit-trace baseline of 2 cells" in done.out) == (0, True), done
    done = cli.sweep(*WORDS, *rules, "exclude=[{mode:jit-*}]")
    assert (
        done.code == 2
        and "baseline_mode=jit-trace is not a mode of this sweep after exclude" in done.err
    ), done


@pytest.fixture
def sharded(cli):
    """A command line whose databases 1.db and 2.db have a shard of a sweep each."""
    for number, keeps in ((1, "true"), (2, "false")):
        words = (
            f"shard={number}/2",
            f"db={number}.db",
            f"executor.keep_cache={keeps}",
            "executor.cache_dir=caches",
        )
        done = cli.sweep(*WORDS, *words)
        assert (done.code, "2 ok of 2 cells" in done.out) == (0, True), done
        if number == 1:
            for part in cache_folders(cli, number):
                part.mkdir()
    return cli


def cache_folders(cli, number):
    sweep_id = info_of(cli.folder / f"{number}.db").id
    return [cli.folder / "caches" / f"{sweep_id}-{part}-2" for part in (1, 2)]


def test_a_shard_that_ends_keeps_the_folder_of_others(sharded):
    assert [part.exists() for part in cache_folders(sharded, 2)] == [True, False]


def test_shards_become_one_sweep(sharded):
    ends = []
    for sources, db in ((("2.db", "1.db"), "turned.db"), (("1.db", "2.db"), "both.db")):
        assert sharded.run("import", *sources, "--db", db).code == 0
        with Store.open(sharded.folder / db) as store:
            ends.append([(sweep.started_at, sweep.finished_at) for sweep in store.sweeps()])
    assert ends[0] == ends[1]
    shown = sharded.run("show", "--db", "both.db", "--format", "csv")
    assert {line.split(",")[0] for line in shown.out.splitlines()[1:]} == {"tiny"}
    with Store.open(sharded.folder / "both.db") as store:
        (sweep,) = store.sweeps()
        assert (sweep.name, sweep.cells, sweep.statuses) == ("n", 4, {"ok": 4})
        assert all(row.speedup for row in store.results(sweep.id))
    for words in (["baseline", "set", "good", "last"], ["db", "check"]):
        done = sharded.run(*words, "--db", "both.db")
        assert done.code == 0, done


def test_a_shard_is_resumed(sharded):
    done = sharded.run("-m", "resume=last", "db=2.db", "shard=1/3")
    assert (done.code, "has no shard 1/3, only 2/2" in done.err) == (2, True), done
    done = sharded.run("-m", "resume=last", "db=2.db")
    assert (done.code, "all trials are already recorded" in done.out) == (0, True), done


def test_nodes_of_a_cluster_share_the_cells_that_are_listed(made, effbench):
    one, two, three = EAGER, DEFAULT, GRAPH
    sweep_id = made.sweep({one: {}, two: None, three: None})
    made.sweep({two: {}}, into=sweep_id, env=environment(cpu_name="EPYC"))
    lines = effbench("ls", "--cells").out.splitlines()
    found = [
        (cell.mode_name, [line for line in lines if line.startswith(cell.key[:12])])
        for cell in (one, two, three)
    ]
    assert [(mode, len(rows), "not run yet" in rows[0]) for mode, rows in found] == [
        ("eager", 1, False),
        ("default", 1, False),
        ("cuda-graph", 1, True),
    ]
