"""Models by name: listed and searched."""

import json

import pytest


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


def test_two_libraries_with_the_same_name_are_told_apart(cli):
    done = cli.sweep("model=torchvision,timm", "model.arch=resnet18", "mode=eager", "--dry-run")
    assert "2 cells × 1 round" in done.out, done


@pytest.mark.extra("timm")
def test_names_and_overrides_stay_whole_in_a_narrow_terminal(effbench, monkeypatch):
    monkeypatch.setattr("effbench.core.terminal.PLAIN_WIDTH", 80)
    words = effbench("models", "timm", "swinv2").out.split()
    name = "swinv2_base_window12to16_192to256"
    assert name in words and f"model.arch={name}" in words
