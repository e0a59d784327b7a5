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
