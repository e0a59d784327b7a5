"""Models by name: listed, swept, and told apart."""

import json

import pytest

from effbench.core.cell import Status
from effbench.store import Store

QUICK = ("protocol.host_tolerance=1000", "model.image_size=32")


@pytest.mark.extra("timm", "transformers")
def test_models_are_listed_and_searched(cli):
    done = cli.run("models")
    assert done.code == 0 and "model=transformers model.arch=bert-base" in done.out, done
    assert "more: effbench models TEXT" in done.out and len(done.out.splitlines()) < 50
    done = cli.run("models", "timm", "mobilenetv3", "--format", "json")
    rows = {row["name"]: row["overrides"] for row in json.loads(done.out)}
    assert rows["mobilenetv3_large_100"] == "model=timm model.arch=mobilenetv3_large_100"
    assert all("mobilenetv3" in name for name in rows)
    assert cli.run("models", "no-such-model").code == 3


@pytest.mark.extra("timm")
def test_names_and_overrides_stay_whole_in_a_narrow_terminal(effbench, monkeypatch):
    monkeypatch.setattr("effbench.core.terminal.PLAIN_WIDTH", 80)
    words = effbench("models", "timm", "swinv2").out.split()
    name = "swinv2_base_window12to16_192to256"
    assert name in words and f"model.arch={name}" in words


def test_two_libraries_with_the_same_name_are_told_apart(cli):
    done = cli.sweep("model=torchvision,timm", "model.arch=resnet18", "mode=eager", *QUICK)
    assert done.code == 0 and "library" in done.out and "torchvision" in done.out, done
    with Store.open(cli.db) as store:
        rows = store.results(store.find_sweep("last").id)
    assert {(row.model, row.status) for row in rows} == {("resnet18", Status.OK)}
    assert len({row.cell_key for row in rows}) == 2


def test_a_name_that_no_library_knows(cli):
    done = cli.sweep("model=torchvision", "model.arch=resnet5O,resnet18")
    assert done.code == 2 and "'resnet5O': did you mean resnet50?" in done.err, done


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("model=tiny model.module.widht=16", "'model.module.widht': did you mean width?"),
        (
            "model=torchvision model.arch=resnet18 model.module.layers=1",
            "resnet18 itself: model.kwargs.NAME=VALUE",
        ),
        (
            "model=transformers model.arch=gpt2 model.module.layers=1",
            "gpt2 itself: model.config.NAME=VALUE",
        ),
    ],
)
def test_a_setting_that_a_model_does_not_have_is_refused_before_a_trial(cli, words, reason):
    done = cli.sweep(*words.split())
    assert done.code == 2 and reason in done.err, done
    with Store.open(cli.db) as store:
        assert store.sweeps() == []
