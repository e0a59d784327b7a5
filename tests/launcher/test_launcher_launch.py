"""The quick composer gives what Hydra's own composing gives, and a program's state stays as it
was."""

import logging

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobRuntime
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf, open_dict

from effbench.config import shipped
from effbench.errors import ConfigError
from effbench.launcher.compose import Composer
from effbench.launcher.launch import hydra_sweep


def by_hydra(loader, overrides):
    """As Hydra's launchers do it."""
    composed = loader[0].load_sweep_config(loader[1], list(overrides))
    OmegaConf.set_readonly(composed, False)
    with open_dict(composed):
        del composed["hydra"]
    return OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)


def test_equal_to_hydra_also_when_composed_again(loader):
    """Jobs with the same choice of groups share one composition, of which nothing stays in the next
    job."""
    composer = Composer(*loader)
    jobs = (
        [],
        ["model.module.width=64", "model.module={width:3}"],
        ["model.module={width:3}", "model.module.width=64"],
        ["bs=1", "bs=2"],
        ["+model.module.extra=1", "model.module.extra=2", "++model.module.extra=[1,2]"],
        ["mode.dynamic=true", "mode=default"],
        ["mode=default", "~mode.options", "model.name='a b, c'", "env.FOO=bar"],
        ["mode=default", "mode.options={max_autotune:true}", "model.tolerance=1e-3"],
        [
            "model=gpt2",
            "model.module.depth=${bs}",
            "bs=8",
            "protocol=rigorous",
            "protocol.budget_s=3",
        ],
        [
            "model=custom",
            "model.module._target_=a.B",
            "model.module.sizes=[4,5]",
            "model.inputs.x.shape=[9]",
        ],
        [
            "model=custom",
            "model.module._target_=a.B",
            "model.inputs.y={shape:[3],low:0}",
            "model.inputs.y.low=1",
        ],
        [
            "env={A:1,B:2}",
            "executor.gpus=[0,1]",
            "db='sqlite:///x.db?a=b'",
            "numerics.tf32=true",
            "dtype=float32",
        ],
        [
            "model=gpt2",
            "bs=8",
            "+mode.a=${model.module.width}",
            "timeout_s=${bs}",
            "env.B='x${bs}'",
        ],
        [
            "model=gpt2",
            "dtype=float16",
            "model.module.depth=${dtype}",
            "model.inputs.token.high=${bs}",
        ],
        ["model=gpt2", "model.module.width=${bs}", "+model.module.b=${model.module.width}", "bs=3"],
        ["timeout_s=${bs}", "+mode.a=${timeout_s}", "env.A=${mode.a}", "bs=7"],
        [
            "env.A='${oc.env:PATH}'",
            "env.B='${oc.env:NOT_SET,${bs}}'",
            "env.C='${oc.select:bs}'",
            "bs=6",
        ],
        [
            "env.A='${oc.env:PATH}'",
            "+mode.a=name",
            "+mode.b='${model.${mode.a}}'",
            "+model.module.a='${..name}'",
        ],
        [],
    )
    expected = [by_hydra(loader, overrides) for overrides in jobs]
    for overrides, composed in zip((*jobs, *jobs), (*expected, *expected), strict=True):
        assert composer.compose(overrides) == composed, overrides
    backwards = Composer(*loader)
    for overrides, composed in zip(reversed(jobs), reversed(expected), strict=True):
        assert backwards.compose(overrides) == composed, overrides
    for overrides in (["bs=many"], ["nothing=1"], ["model=nothing"], ["+bs=1"]):
        with pytest.raises(HydraException):
            composer.compose(overrides)


def test_options_that_reach_beyond_their_section(loader, tmp_path):
    """Files with a defaults list or another package are composed together with all other
    choices."""
    for name, text in (
        ("model/mine", "defaults: [mlp]\nmodule: {width: 7}\n"),
        (
            "protocol/mine",
            "# @package _global_\nprotocol: {rounds: 9}\nmode: {extra: 5}\ntimeout_s: 8\n",
        ),
    ):
        file = tmp_path / f"{name}.yaml"
        file.parent.mkdir()
        file.write_text(text)
    with initialize_config_dir(str(shipped("conf")), version_base="1.3"):
        found = GlobalHydra.instance().config_loader()
        words = [f"hydra.searchpath=[file://{tmp_path}]"]
        mine = found, found.load_configuration("config", words, run_mode=RunMode.MULTIRUN)
        composer = Composer(*mine)
        for mode in ("eager", "default"):
            for words in (
                ["model=mine"],
                ["protocol=mine"],
                ["protocol=mine", "model=mine"],
                ["model=gpt2"],
            ):
                job = [*words, f"mode={mode}", "bs=4"]
                expected = by_hydra(mine, job)
                if "protocol=mine" in job:
                    expected["protocol"]["name"] = "mine"  # after its file
                assert composer.compose(job) == expected, job


def test_bs_and_what_refers_to_it_follow_the_stream(loader):
    composer = Composer(*loader)
    for size in (8, 16, 8):
        found = composer.compose(
            ["model=gpt2", "stream=uniform", f"stream.low={size}", f"stream.high={size}"]
        )
        assert found["bs"] == found["model"]["module"]["max_batch"] == size
    assert composer.compose(["model=gpt2", "stream=uniform", "stream.low=64", "bs=64"])["bs"] == 64
    assert composer.compose(["model=gpt2"])["bs"] == 1
    with pytest.raises(ConfigError, match="bs=4 contradicts the stream, whose largest size is 64"):
        composer.compose(["model=gpt2", "stream=uniform", "stream.low=64", "bs=4"])


def test_a_program_keeps_its_own_hydra():
    planned = []
    with initialize_config_dir(str(shipped("conf")), job_name="mine", version_base="1.3"):
        own = GlobalHydra.instance().hydra
        hydra_sweep(["model=tiny", "bs=1,2"], conductor=lambda jobs, command: planned.extend(jobs))
        assert GlobalHydra.instance().hydra is own
        assert JobRuntime().get("name") == "mine"
    assert [job.config["bs"] for job in planned] == [1, 2]


def test_nothing_logs_more_after_info(capsys):
    """Hydra's --info lowers the level of all loggers: a later sweep of the same process would print
    everything."""
    before = logging.root.level, logging.root.handlers[:], logging.raiseExceptions
    assert hydra_sweep(["--info"]) is None and "Defaults List" in capsys.readouterr().out
    assert (logging.root.level, logging.root.handlers, logging.raiseExceptions) == before
