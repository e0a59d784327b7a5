"""Hydra's own conventions keep working."""

import pytest

import effbench
from effbench.store import Store


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--hydra-help", ["Hydra"]),
        ("-c job bs=3 model=tiny", ["bs: 3", "name: tiny"]),
        ("bs=3 --multirun --cfg=job mode=default", ["bs: 3", "name: default"]),
        ("--version", [f"effbench {effbench.__version__}"]),
        ("-sc install=bash", ["hydra_bash_completion"]),
    ],
)
def test_what_hydra_prints(cli, words, said):
    done = cli.run(*words.split())
    assert (done.code, done.err) == (0, "")
    assert all(text in done.out for text in said)
    assert list(cli.folder.iterdir()) == []


def plan_of(cli) -> list[tuple[str, int, str, int]]:
    with Store.open(cli.db) as store:
        (sweep,) = store.sweeps()
        return [
            (c.model_name, c.bs, c.mode_name, c.model["module"]["width"])
            for c in store.planned(sweep.id)
        ]


def test_sweeps_of_every_kind_and_words_in_any_order(cli):
    done = cli.run(
        "bs=range(1,3)",
        "-m",
        *cli.tiny,
        "model=tiny",
        "mode=glob(e*)",
        "model.module.width=choice(8,16)",
        "model.inputs.x.shape=[${model.module.width}]",
    )
    assert done.code == 0, done
    assert plan_of(cli) == [("tiny", bs, "eager", width) for bs in (1, 2) for width in (8, 16)]
    cli.db.unlink()
    assert cli.run("model=tiny", *cli.tiny).code == 0, "one cell needs no -m"
    assert plan_of(cli) == [("tiny", 1, "eager", 32)]
    cli.db.unlink()
    assert cli.sweep("model=tiny,tiny", "bs=2,2").code == 0
    assert plan_of(cli) == [("tiny", 2, "eager", 32)], "a cell named twice runs once"


@pytest.mark.slow
def test_a_reader_that_leaves_does_not_end_a_sweep(cli, processes):
    """As with `effbench show | head -1`."""
    sweep = ["-m", *cli.tiny, "model=tiny", "bs=1,2,3"]
    for command in (["--cfg", "job"], ["--info"], sweep, ["show"], ["ls"], ["export"]):
        process = cli.start(*command, env={"PYTHONUNBUFFERED": "1"})
        processes.append(process)
        process.stdout.close()
        assert (process.communicate(timeout=60)[1], process.returncode) == ("", 0), command
    with Store.open(cli.db) as store:
        assert [(one.state, one.statuses) for one in store.sweeps()] == [("completed", {"ok": 3})]
