"""What jobs compose to: what Hydra composes, with the types of the settings."""

from operator import attrgetter

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import OmegaConf

from effbench.config.compose import Composer, config_of
from effbench.config.overrides import parse
from effbench.core.errors import ConfigError
from effbench.core.settings import quoted, shipped


def by_hydra(loader, master, words):
    """The configuration as Hydra's launchers compose it."""
    composed = OmegaConf.to_container(loader.load_sweep_config(master, list(words)), resolve=False)
    del composed["hydra"]
    return config_of(OmegaConf.to_container(OmegaConf.create(composed), resolve=True))


@pytest.mark.parametrize(
    "words",
    [
        "",
        "model.module.width=64 model.module={width:3}",
        "model.module={width:3} model.module.width=64",
        "bs=1 bs=2",
        "+model.module.extra=1 model.module.extra=2 ++model.module.extra=[1,2]",
        "mode.dynamic=true mode=default",
        "mode=default ~mode.options model.name='a,b' env.FOO=bar",
        "mode=default mode.options={max_autotune:true} model.tolerance=1e-3",
        "model=gpt2 model.module.depth=${bs} bs=8 protocol=rigorous timeout_s=3",
        "model=custom model.module._target_=a.B model.inputs.x.shape=[9]",
        "model.module.sizes=[4,5] model.module.sizes.1=6 protocol={rounds:3,load_s:1}",
        "model=lin3 model.inputs.y={shape:[3],low:0} model.inputs.y.low=1",
        "env={A:1,B:2} executor.sbatch={qos:a} db='sqlite:///x.db?a=b' numerics.tf32=true",
        "bs=8 +mode.a=${model.module.width} timeout_s=${bs} env.B='x${bs}'",
        "dtype=float16 model.module.depth=${dtype} +model.module.b=${model.module.depth}",
        "timeout_s=${bs} +mode.a=${timeout_s} env.A=${mode.a} bs=7",
        "env.A='${oc.env:PATH}' env.B='${oc.env:NOT_SET,${bs}}' env.C='${oc.select:bs}'",
        "+mode.a=name +mode.b='${model.${mode.a}}' +model.module.a='${..name}'",
        "~stream model=bert-base ~model.inputs.attention_mask",
    ],
)
def test_equal_to_hydra(loader, compose, words):
    assert compose(words.split()) == by_hydra(*loader, words.split())


def test_a_job_leaves_nothing_for_the_next_one(compose):
    before = compose([])
    compose(["model.module.width=64", "env.A=1", "~mode.name", "protocol.rounds=1"])
    assert compose([]) == before


OPTIONS = {
    "model": "defaults: [mlp]\nmodule: {width: 7}\n",
    "protocol": "# @package _global_\nprotocol: {rounds: 9}\nmode: {extra: 5}\ntimeout_s: 8\n",
}


@pytest.fixture(scope="module")
def loader_of_options(loader, tmp_path_factory):
    """A loader that finds the files `mine.yaml` of OPTIONS, and its master configuration."""
    folder = tmp_path_factory.mktemp("options")
    for group, text in OPTIONS.items():
        (folder / group).mkdir()
        (folder / group / "mine.yaml").write_text(text)
    path = [f"hydra.searchpath=[file://{folder}]"]
    with initialize_config_dir(str(shipped("conf")), version_base="1.3"):
        own = GlobalHydra.instance().config_loader()
        return own, own.load_configuration("config", path, run_mode=RunMode.MULTIRUN)


@pytest.mark.parametrize(
    "words", [["model=mine"], ["protocol=mine"], ["protocol=mine", "model=mine"]], ids=" ".join
)
def test_options_that_reach_beyond_their_section(loader_of_options, words):
    """Files with a defaults list or another package are composed together with all other
    choices."""
    job = [*words, "mode=default", "bs=4"]
    expected = by_hydra(*loader_of_options, job)
    if "protocol=mine" in job:
        expected.protocol.name = "mine"  # after its file
    composer = Composer(*loader_of_options)
    assert composer.job([parse(word) for word in job]).config == expected


def test_bs_and_what_refers_to_it_follow_the_stream(compose):
    for size in (8, 16):
        config = compose(
            ["model=gpt2", "stream=uniform", f"stream.low={size}", f"stream.high={size}"]
        )
        assert config.bs == config.model.module["max_batch"] == size
    words = ["model=gpt2", "stream=uniform", "stream.low=64"]
    with pytest.raises(ConfigError, match="bs=4 contradicts the stream, whose largest size is 64"):
        compose([*words, "bs=4"])


@pytest.mark.parametrize(
    ("word", "name", "value"),
    [
        ("timeout_s=5", "timeout_s", 5.0),
        ("bs='8'", "bs", 8),
        ("sweep.label=1234567.25", "sweep.label", "1234567.25"),
        ("+bs=2", "bs", 2),
        ("resume=20261127", "resume", "20261127"),
        ("threads=null", "threads", None),
    ],
)
def test_values_have_the_types_of_their_settings(compose, word, name, value):
    found = attrgetter(name)(compose([word]))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "text", ["/a/b.py", "a b", "a,b={c}", "it's", 'say "so"', "back\\slash", 'back\\"', "end\\"]
)
def test_a_quoted_text_is_read_back(compose, text):
    assert compose([f"folder={quoted(text)}"]).folder == text
