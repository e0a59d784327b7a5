"""Hydra's own conventions keep working."""

import pytest

import effbench
from effbench.store import Store


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--hydra-help", ["Hydra"]),
        ("-c job bs=3 model=tiny env.FOO=1", ["bs: 3", "name: tiny", "FOO: 1", "rounds: 5"]),
        ("--version", [f"effbench {effbench.__version__}"]),
        ("-sc install=bash", ["hydra_bash_completion"]),
    ],
)
def test_what_hydra_prints(cli, words, said):
    done = cli.run(*words.split())
    assert (done.code, done.err) == (0, "")
    for text in said:
        assert text in done.out
    assert list(cli.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "planned"),
    [
        (
            "bs=range(1,2) -m mode=glob(e*) model.module.width=choice(8,16)"
            " model.inputs.x.shape=[${model.module.width}]",
            [(1, 8), (1, 16)],
        ),
        ("model=tiny,tiny bs=2,2 -m", [(2, 32)]),  # a cell named twice runs once
    ],
)
def test_sweeps_of_every_kind_and_words_in_any_order(cli, words, planned):
    done = cli.run(*cli.tiny, "model=tiny", *words.split())
    assert done.code == 0, done
    with Store.open(cli.db) as store:
        cells = store.planned(store.find_sweep("last").id)
    assert [(cell.bs, cell.model["module"]["width"]) for cell in cells] == planned


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
        assert [(sweep.state, sweep.statuses) for sweep in store.sweeps()] == [
            ("completed", {"ok": 3})
        ]
