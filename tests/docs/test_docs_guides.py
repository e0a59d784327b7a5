"""Every command of the README, the tutorial and the guides is run, on tiny models and for short
times."""

from __future__ import annotations

import re

import pages
import pytest

from effbench.cli.main import is_bare_word

PAGES = (
    "../README.md",
    "tutorial.md",
    *(page for page in pages.pages() if page.startswith("how-to/")),
)
#: What is not here: other machines, clusters, interpreters and checkouts, a GPU, swept widths.
ELSEWHERE = re.compile(
    r"postgresql:|OLD_URL|--join |h100$|executor=slurm"
    r"|executor\.gpus|/envs/|\.\./before|my_pkg|--by |piecewise-graph"
)
FAST = [
    "protocol.budget_s=0.05",
    "protocol.min_time_s=0",
    "protocol.warmup_s=0.01",
    "protocol.rounds=2",
    "device=cpu",
    "protocol.compilations=1",
    "protocol.min_samples=2",
    "protocol.host_tolerance=1000",
]
SMALL = [
    f"model.module.{setting}"
    for setting in ("layers=1", "width=64", "heads=4", "kv_heads=2", "ffn=64", "vocab=99")
]
SHIPPED = re.compile(r"model=(mlp|gpt2|attention|resnet50)\b")


def quick(words):
    """The words of a sweep, with a tiny model, few modes and a short protocol."""
    kept = [word for word in words if not word.startswith("protocol")]
    kept = ["model=tiny" if SHIPPED.match(word) else word for word in kept]
    kept = ["stream.high=4" if word.startswith("stream.high=128") else word for word in kept]
    kept += ["model.config.num_hidden_layers=1"] * ("model=transformers" in kept)
    kept += SMALL * ("model=llama-1b-decode" in kept)
    kept += ["generate.new_tokens=4"] * ("phase=generate" in kept)
    modes = [word for word in kept if word.startswith("mode=")]
    short = [
        ",".join(dict.fromkeys(word.replace("max-autotune", "default").split(",")))
        for word in modes
    ]
    return [short[modes.index(word)] if word in modes else word for word in kept] + FAST


@pytest.fixture(scope="module")
def guided(cli_in, tmp_path_factory):
    """A folder with the files that the pages show, and sweeps of every name that they mention."""
    cli = cli_in(tmp_path_factory.mktemp("guides"))
    pages.write_files(cli.folder)
    (cli.folder / "results").mkdir(exist_ok=True)
    (cli.folder / "results" / "reference").symlink_to(pages.ROOT / "results" / "reference")
    for name in ("before", "after", "nightly", "push", "first"):
        modes = "eager,default" if name == "push" else "eager"
        sweep = f"-m model=tiny model.name=mlp bs=1,8 mode={modes} sweep.name={name}"
        words = [*sweep.split(), *FAST]
        assert cli.run(*words).code == 0
    cli.again = words
    assert cli.run("baseline", "set", "main", "push").code == 0
    return cli


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES)
def test_commands_run(page, guided):
    for line in (
        line for found, line in pages.commands() if found == page and not ELSEWHERE.search(line)
    ):
        words = pages.arguments(line)
        is_sweep = not is_bare_word(words[0])
        if words[0] == "check":  # of another sweep than the baseline
            assert guided.run(*guided.again).code == 0
        if is_sweep:
            words = quick(words)
        elif words[0] == "coldstart" and "mlp" in words:
            words = ["tiny" if word == "mlp" else word for word in words]
            words += [*FAST, "protocol.rounds=1"]
        done = guided.run(*words)
        # 1: a check that fails, cells without a GPU; 3: nothing of that name here
        assert done.code in ((0, 1) if is_sweep else (0, 1, 3)), (line, done)
