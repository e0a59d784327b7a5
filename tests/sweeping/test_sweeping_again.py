"""The overrides of a cell plan that very cell again, whatever it was made of."""

from __future__ import annotations

import dataclasses
import shlex

import pytest
from effbench.sweeping import hydra_plugin, plan
from effbench.sweeping.again import InexpressibleError, overrides_of, protocol_overrides, text_of
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from effbench import config
from effbench.cell import Cell
from effbench.cli import config_folder
from effbench.errors import ConfigError
from effbench.launcher.compose import Composer

MODELS = sorted(path.stem for path in (config_folder() / "model").glob("*.yaml") if path.stem != "custom")
MODES = sorted(path.stem for path in (config_folder() / "mode").glob("*.yaml"))
MADE_OF = (
    ["model=mlp", "model.module.width=64"],
    ["model=mlp", "model.inputs.x.shape=[64]"],
    ["model=mlp", "model.name=wide", "model.module.extra={a:1,b:[1,2.5,null,true]}"],
    ["model=gpt2", "bs=4"],
    ["model=gpt2", "bs=4", "model.module.max_batch=16"],
    ["model=bert-base", "model.module.seq=16", "~model.inputs.attention_mask"],
    ["model=lin3", "model.module.sizes=[4,5]", "model.tolerance=1e-3", "model.allow_nonfinite=true"],
    ["model=custom", "model.module._target_=nets/mine.py:Net", "model.inputs.x.shape=[3,8,8]",
     "model.inputs.ids={shape:[4],dtype:int64,low:0,high:5,keyword:true}"],
    ["model=custom", "model.module._target_=a.B", "model.module.how='so, {it} is'", "model.inputs.b.shape=[1]",
     "model.inputs.a.shape=[]", "model.name='a b, c=d'"],
    ["model=custom", "model.module._target_=a.B", "model.module.n='7'", "model.module.t='true'", "model.module.f=1.0",
     "model.module.empty={}", "model.module.none=[]", "model.inputs.x={shape:[1],batch_dim:null}"],
    ["mode=default", "mode.fullgraph=true", "mode.options={max_autotune:true,triton.cudagraphs:false}"],
    ["mode=cuda-graph", "mode.warmups=5", "mode.extra=x"],
    ["mode=default", "~mode.options", "mode.name=mine"],
    ["mode=eager", "mode.name=own", "mode._target_=my_modes.Fast", "mode.level=2"],
    ["numerics.tf32=true", "numerics.matmul_precision=high", "numerics.seed=7", "dtype=float16"],
    ["env.OMP_NUM_THREADS=1", "env.FLAG=true", "env.TEXT='a b'", "env.ZERO=007"],
    ["phase=training", "training.lr=0.01", "training.optimizer=sgd"],
    ["stream=uniform", "stream.length=8", "stream.high=9", "model=gpt2"],
    ["stream=bursty"],
)  # fmt: skip


@pytest.fixture(scope="module")
def planned():
    """Overrides -> the cell that they plan."""
    config.register()
    hydra_plugin.register()
    from hydra.types import RunMode

    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        composer = Composer(loader, loader.load_configuration("config", [], run_mode=RunMode.MULTIRUN))

        def cell_of(words):
            parts, settings = plan.split([composer.compose(words)])
            return plan.resolve(parts, has_cuda=False)[0], settings

        yield cell_of


@pytest.mark.parametrize("words", MADE_OF, ids=" ".join)
def test_the_same_key(planned, words):
    cell, _ = planned(words)
    again = overrides_of(cell)
    assert planned(again)[0].key == cell.key
    assert shlex.split(shlex.join(again)) == again


@pytest.mark.parametrize("model", MODELS)
def test_every_model_that_ships_is_named_and_not_spelled_out(planned, model):
    cell, _ = planned([f"model={model}", "bs=4", "device=cpu"])
    again = overrides_of(cell)
    assert again == [f"model={model}", "mode=eager", "bs=4", "dtype=float32", "device=cpu"]
    assert planned(again)[0].key == cell.key


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_that_ships_is_named(planned, mode):
    cell, _ = planned([f"mode={mode}", "bs=2"])
    assert overrides_of(cell)[:2] == ["model=mlp", f"mode={mode}"]
    assert planned(overrides_of(cell))[0].key == cell.key


@pytest.mark.parametrize(
    "words", [["protocol=quick"], ["protocol=standard", "protocol.rounds=3", "protocol.enough_interval=0.02"], []]
)
def test_the_protocol_too(planned, words):
    _, settings = planned(words)
    again = protocol_overrides(settings.protocol)
    assert planned(again)[1].protocol == settings.protocol
    assert len(again) == max(1, len(words))


@pytest.mark.parametrize(
    "text",
    ["", " ", "a b", "null", "NULL", "True", "1", "1e5", "-3", "0x1", "nan", "a=b", "a,b", "[x]", "{x:1}", "it's",
     'say "so"', "back\\slash", 'back\\"', "end\\", "~x", "$HOME", "a:b", "ü",
     "<img src=x onerror=alert(1)>", "../../x"],
)  # fmt: skip
def test_text_is_read_back(planned, text):
    words = ["model=custom", "model.module._target_=a.B", "model.inputs.x.shape=[1]", f"model.module.t={text_of(text)}"]
    assert planned(words)[0].model["module"]["t"] == text


def test_what_no_override_says_is_refused(planned, tmp_path):
    sizes = tmp_path / "sizes.csv"
    sizes.write_text("1\n4\n")
    of_a_file, _ = planned(["stream=csv", f"stream.path={sizes}"])
    plain, _ = planned([])
    older = dataclasses.replace(plain, numerics={"tf32": False})
    odd = dataclasses.replace(plain, env={"A.B": "1"})
    unknown = dataclasses.replace(plain, model={**plain.model, "colour": "red"})
    refers = dataclasses.replace(plain, env={"A": "${bs}"})
    for cell, why in ((of_a_file, "file"), (older, "numerics"), (odd, "A.B"), (unknown, "mlp"), (refers, "bs")):
        with pytest.raises(InexpressibleError, match=why):
            overrides_of(cell)
    assert issubclass(InexpressibleError, ConfigError)


def test_a_mode_from_before_it_had_a_setting(planned):
    cell, _ = planned(["mode=default"])
    for name in ("dynamic", "fullgraph"):  # Hydra does not take out what is null
        older = dataclasses.replace(cell, mode={key: value for key, value in cell.mode.items() if key != name})
        assert planned(overrides_of(older))[0].key == older.key


def test_a_cell_out_of_the_database_is_the_same(planned):
    cell, _ = planned(["model=bert-base", "bs=2", "mode=compile+graph"])
    assert planned(overrides_of(Cell.from_params(cell.params())))[0].key == cell.key
