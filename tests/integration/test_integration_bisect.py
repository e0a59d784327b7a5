"""`effbench bisect` on the CPU."""

import json
import subprocess

import pytest

MODEL = (
    "model=custom",
    "model.module._target_=mischief.InDuet",
    "model.inputs.x.shape=[8]",
    "mode=eager",
    "threads=1",
)


@pytest.fixture(scope="module")
def place(cli_in, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bisect") / "here"
    folder.mkdir()
    return cli_in(folder, imports=False)


def bisect(place, *words):
    done = place.run("bisect", *words, *place.tiny, "--format", "json")
    assert done.code == 0, done
    return json.loads(done.out)


def test_the_setting_that_makes_a_cell_fail_is_found_again_by_the_same_probes(place):
    sides = "+model.module.what=nothing", "+model.module={what:die,seconds:0.002}"
    found = bisect(place, *sides, *MODEL)
    assert found["cause"] == ['+model.module.what="die"']
    assert found["sentence"].startswith('`+model.module.what="die"` makes it crashed')
    assert found["probes"][0]["status"].startswith("crashed: ")
    again = bisect(place, *sides, *MODEL, "--resume")
    assert again == found


@pytest.mark.slow
def test_the_setting_that_makes_a_stored_cell_slower_is_found(place):
    place.sweep(*MODEL, "+model.module.seconds=0.002", "sweep.name=fast")
    slow = "+model.module.seconds=0.004 numerics.seed=1 numerics.matmul_precision=high"
    found = bisect(place, "sweep=fast mode=eager", slow, *MODEL, "protocol.rounds=3")
    assert found["cause"] == ["+model.module.seconds=0.004"]
    assert 0.8 < found["probes"][-1]["explains"] < 1.2


@pytest.mark.slow
def test_the_commit_that_makes_the_model_slower_is_found(cli):
    def git(*words):
        names = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *names, *words], cwd=cli.folder, check=True)

    git("init", "-q")
    for milliseconds in (2, 2, 2, 4, 4):
        source = (cli.folder / "net.py").read_text() if (cli.folder / "net.py").exists() else ""
        source += f"""
import time
import torch
class Net(torch.nn.Module):
    def forward(self, x):
        time.sleep({milliseconds / 1000})
        return x * 2
"""
        (cli.folder / "net.py").write_text(source)
        git("add", "net.py")
        git("commit", "-q", "-m", f"sleep {milliseconds}")
    words = ("model=custom", "model.module._target_=net.Net", "model.inputs.x.shape=[8]")
    found = bisect(cli, *words, "mode=eager", "protocol.rounds=3", "--commits", "HEAD~4..HEAD")
    (cause,) = found["cause"]
    assert cause.endswith("sleep 4")
    assert found["sentence"].startswith(f"`{cause}` makes it ")
    assert not list((cli.cache.parent / "bisect").iterdir())


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("eager", "mode=eager"), "A and B have the same settings"),
        (("eager",), "takes A and B, or --commits"),
        (("eager", "default,eager"), "give one value"),
        (("eager", "default", "--metric", "time"), "--metric"),
        (("--commits", "HEAD~1000..HEAD", "mode=eager"), "which has no HEAD~1000"),
        (("--commits", "main..nowhere", "mode=eager"), "no nowhere"),
        (("--commits", "HEAD..HEAD", "mode=eager"), "expected GOOD..BAD"),
    ],
)
def test_wrong_words_are_refused(place, words, error):
    done = place.run("bisect", *words)
    assert done.code == 2, done
    assert error in done.err
    assert len(done.err.splitlines()) <= 2
