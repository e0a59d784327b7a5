"""The quick composer gives what Hydra's own composing gives."""

import pytest
from hydra.errors import HydraException
from omegaconf import OmegaConf, open_dict

from effbench.errors import ConfigError
from effbench.launcher.compose import Composer


def by_hydra(loader, overrides):
    """As Hydra's launchers do it."""
    composed = loader[0].load_sweep_config(loader[1], list(overrides))
    OmegaConf.set_readonly(composed, False)
    with open_dict(composed):
        del composed["hydra"]
    return OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)


def test_equal_to_hydra_also_when_composed_again(loader):
    """Jobs with the same choice of groups share one composition, of which nothing stays in the next job."""
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
        ["model=gpt2", "model.module.depth=${bs}", "bs=8", "protocol=rigorous", "protocol.budget_s=3"],
        ["model=custom", "model.module._target_=a.B", "model.module.sizes=[4,5]", "model.inputs.x.shape=[9]"],
        ["model=custom", "model.module._target_=a.B", "model.inputs.y={shape:[3],low:0}", "model.inputs.y.low=1"],
        ["env={A:1,B:2}", "executor.gpus=[0,1]", "db='sqlite:///x.db?a=b'", "numerics.tf32=true", "dtype=float32"],
        [],
    )
    for overrides in (*jobs, *jobs):
        assert composer.compose(overrides) == by_hydra(loader, overrides), overrides
    for overrides in (["bs=many"], ["nothing=1"], ["model=nothing"], ["+bs=1"]):
        with pytest.raises(HydraException):
            composer.compose(overrides)


def test_bs_and_what_refers_to_it_follow_the_stream(loader):
    composer = Composer(*loader)
    for size in (8, 16, 8):
        found = composer.compose(["model=gpt2", "stream=uniform", f"stream.low={size}", f"stream.high={size}"])
        assert found["bs"] == found["model"]["module"]["max_batch"] == size
    assert composer.compose(["model=gpt2", "stream=uniform", "stream.low=64", "bs=64"])["bs"] == 64
    assert composer.compose(["model=gpt2"])["bs"] == 1
    with pytest.raises(ConfigError, match="bs=4 contradicts the stream, whose largest size is 64"):
        composer.compose(["model=gpt2", "stream=uniform", "stream.low=64", "bs=4"])
