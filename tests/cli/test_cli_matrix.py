"""exclude, shard and --dry-run on the command line."""

from made_sweeps import DEFAULT, EAGER, GRAPH, environment, sql
from whole_sweeps import info_of

from effbench.store import Store

WORDS = ("model=tiny", "bs=1,2", "mode=eager,jit-trace", "sweep.name=n", "sweep.label=v1")


def test_a_plan_is_printed_and_nothing_runs(cli):
    rules = 'exclude=[{mode:jit-trace,bs:">1"},{bs:77}]'
    done = cli.sweep(*WORDS, rules, "--dry-run")
    assert (done.code, done.err) == (0, ""), done
    for text in (
        "3 cells × 1 round",
        "exclude removes 1 cell",
        " from the protocol and usual",
        "no cell matches the rule {bs: 77}",
    ):
        assert text in done.out
    on_cluster = cli.sweep(
        *WORDS, "executor=slurm", "device=auto", "exclude=[{bs:1,device:cuda}]", "--dry-run"
    )
    assert "2 cells × 1 round (quick) on SLURM" in on_cluster.out, "auto is the device of the jobs"
    assert not cli.db.exists()
    assert cli.sweep(*WORDS, rules).code == 0
    with Store.open(cli.db) as store:
        planned = {(cell.bs, cell.mode_name) for cell in store.planned(store.find_sweep("last").id)}
    assert planned == {(1, "eager"), (2, "eager"), (1, "jit-trace")}
    again = cli.run("-m", "resume=last", "--dry-run")
    assert (again.code, "0 trials to run" in again.out) == (0, True), again
    assert (
        "ran under effbench's own"
        in cli.run("-m", "resume=last", f"folder={cli.folder}", "--dry-run").err
    )
    more = cli.run("-m", "resume=last", "protocol.rounds=2", "--dry-run")
    assert "3 cells × 2 rounds" in more.out and "3 trials to run" in more.out, more
    for key, old, new in (("baseline_mode", "eager", "jit-trace"), ("sweep.seed", "0", "5")):
        refused = cli.run("-m", "resume=last", f"{key}={new}", "--dry-run").err
        assert f"has {key}={old}, not {new}" in refused
    done = cli.sweep(*WORDS, "--dry-run")
    assert "4 trials to run" in done.out and ", from the medians of earlier trials\n" in done.out, (
        done
    )
    done = cli.sweep(*WORDS, "shard=1/2", "protocol.rounds=2", "--dry-run")
    assert (
        "shard 1/2: 2 cells in other shards" in done.out and "medians of earlier trials" in done.out
    ), done
    assert "from the protocol and" in cli.sweep(*WORDS, "protocol.budget_s=0.3", "--dry-run").out, (
        "another protocol"
    )
    sql(cli.db, "UPDATE environment SET cpu_name = 'another'")
    assert "from the protocol and" in cli.sweep(*WORDS, "--dry-run").out
    sql(cli.db, "UPDATE sweep SET host = replace(host, (SELECT id FROM environment), 'other')")
    sql(cli.db, "UPDATE trial SET environment_id = 'other'")
    again = cli.run("-m", "resume=last", "--dry-run")
    assert "software has changed since the recorded trials: all cells run again\n" in again.out, (
        again
    )
    assert "3 trials to run" in again.out
    with Store.open(cli.db) as store:
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
        assert {row["trials"] for row in store.results(sweep.id)} == {3}
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


def test_shards_become_one_sweep(cli):
    for number, keeps in ((1, "true"), (2, "false")):
        words = (
            f"shard={number}/2",
            f"db={number}.db",
            f"executor.keep_cache={keeps}",
            "executor.cache_dir=caches",
        )
        done = cli.sweep(*WORDS, *words)
        assert (done.code, "2 ok of 2 cells" in done.out) == (0, True), done
        parts = [
            cli.folder / "caches" / f"{info_of(cli.folder / f'{number}.db').id}-{part}-2"
            for part in (1, 2)
        ]
        for part in parts if number == 1 else ():
            part.mkdir()
    assert [part.exists() for part in parts] == [True, False], (
        "a shard that ends keeps the folder of others"
    )
    ends = []
    for sources, db in ((("2.db", "1.db"), "turned.db"), (("1.db", "2.db"), "both.db")):
        assert cli.run("import", *sources, "--db", db).code == 0
        with Store.open(cli.folder / db) as store:
            ends.append([(sweep.started_at, sweep.finished_at) for sweep in store.sweeps()])
    assert ends[0] == ends[1]
    shown = cli.run("show", "--db", "both.db", "--format", "csv")
    assert {line.split(",")[0] for line in shown.out.splitlines()[1:]} == {"tiny"}
    with Store.open(cli.folder / "both.db") as store:
        (sweep,) = store.sweeps()
        assert (sweep.name, sweep.cells, sweep.statuses) == ("n", 4, {"ok": 4})
        assert all(row["speedup"] for row in store.results(sweep.id))
    done = cli.run("-m", "resume=last", "db=2.db", "shard=1/3")
    assert (done.code, "has no shard 1/3, only 2/2" in done.err) == (2, True), done
    done = cli.run("-m", "resume=last", "db=2.db")
    assert (done.code, "all trials are already recorded" in done.out) == (0, True), done
    for words in (["baseline", "set", "good", "last"], ["db", "check"]):
        done = cli.run(*words, "--db", "both.db")
        assert done.code == 0, done


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
