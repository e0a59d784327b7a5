"""The quick composer gives what Hydra's own composing gives."""

from __future__ import annotations

import random

import pytest
from omegaconf import OmegaConf, open_dict

from effbench.errors import ConfigError
from effbench.launcher.launch import Composer

#: What a job may be made of: one of each line, or none of it.
POOL = (
    ["model=mlp", "model=tiny", "model=gpt2", "model=lin3", "model=custom"],
    ["mode=eager", "mode=default", "mode=compile+graph"],
    ["protocol=quick", "protocol=rigorous"],
    ["bs=1", "bs=8"],
    ["dtype=float32", "dtype=auto"],
    ["numerics.tf32=true", "numerics.tf32=false"],
    ["model.name=other", "model.name=null", "model.name='a b, c'"],
    ["model.tolerance=0.01", "model.tolerance=null", "model.tolerance=1e-3"],
    ["model.module.width=64", "+model.module.extra=1", "++model.module.extra=[1,2]"],
    ["model.module.sizes=[4,5]", "model.module.sizes=[]"],
    ["model.module={_target_:a.B,deep:{x:1}}"],
    ["model.inputs.y={shape:[3],dtype:int64,low:0,high:5}", "model.inputs={x:{shape:[7]}}"],
    ["model.inputs.x.shape=[9]"],
    ["model.inputs.y.low=1", "model.module.deep.x=5"],
    ["mode.fullgraph=true", "mode.options={max_autotune:true}", "mode.options={}"],
    ["env.FOO=1", "env.FOO=bar", "env={A:1,B:2}"],
    ["protocol.budget_s=3", "protocol.rounds=3"],
    ["executor.gpus=[0,1]", "executor.gpus=auto"],
    ["db=x.db", "db='sqlite:///x.db?a=b'"],
    ["model.module.depth=${bs}"],
    ["~mode.options"],
)


def by_hydra(loader, overrides):
    """As Hydra's launchers do it."""
    composed = loader[0].load_sweep_config(loader[1], list(overrides))
    OmegaConf.set_readonly(composed, False)
    with open_dict(composed):
        del composed["hydra"]
    return OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)


def attempt(compose, overrides):
    """The configuration, or that it was refused."""
    try:
        return compose(overrides)
    except Exception:
        return "refused"


@pytest.mark.slow
def test_equal_to_hydra_for_any_mixture(loader):
    draw = random.Random(1)
    composer = Composer(*loader)
    refused = 0
    for _ in range(40):
        lines = draw.sample(POOL, draw.randint(0, 7))
        overrides = [draw.choice(line) for line in lines]
        expected = attempt(lambda given: by_hydra(loader, given), overrides)
        refused += expected == "refused"
        for _ in range(2):  # once more, from what is kept by now
            assert attempt(composer.compose, overrides) == expected, overrides
    assert 0 < refused < 25, "most of the mixtures are meant to be valid"


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.module.width=64", "model.module={width:3}"],
        ["model.module={width:3}", "model.module.width=64"],
        ["bs=1", "bs=2"],
        ["+model.module.extra=1", "model.module.extra=2", "++model.module.extra=3"],
        ["mode.dynamic=true", "mode=default"],
    ],
)
def test_the_later_word_wins_as_with_hydra(loader, overrides):
    composer = Composer(*loader)
    for _ in range(2):
        assert composer.compose(overrides) == by_hydra(loader, overrides)


def test_bs_and_what_refers_to_it_follow_the_stream(loader):
    composer = Composer(*loader)
    for size in (8, 16, 8):
        found = composer.compose(["model=gpt2", "stream=uniform", f"stream.low={size}", f"stream.high={size}"])
        assert found["bs"] == found["model"]["module"]["max_batch"] == size
    assert composer.compose(["model=gpt2", "stream=uniform", "stream.low=64", "bs=64"])["bs"] == 64
    assert composer.compose(["model=gpt2"])["bs"] == 1
    with pytest.raises(ConfigError, match="bs=4 and a stream whose largest size is 64"):
        composer.compose(["model=gpt2", "stream=uniform", "stream.low=64", "bs=4"])
