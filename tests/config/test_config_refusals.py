"""What a setting takes, as errors express it, and the example that they give."""

import re
import shlex

import pytest
from hydra.errors import HydraException

from effbench.config.compose import checked
from effbench.config.refusals import example, explain
from effbench.config.validation import validate
from effbench.core import streams
from effbench.core.errors import ConfigError, EffbenchError
from effbench.core.settings import SETTINGS

#: Settings whose examples are valid only together with others.
TOGETHER = (
    "model.arch",
    "model.config",
    "model.kwargs",
    "model.task",
    "model.seq",
    "model.image_size",
    "model.resolution",
    "model.frames",
    "model.steps",
    "executor.name",
    "stream.",
)


@pytest.mark.parametrize("name", sorted(SETTINGS.keys() - {"exclude", "stream.name", "mode"}))
def test_the_example_of_every_setting_is_valid(name, job_of):
    setting = SETTINGS[name]
    (word,) = shlex.split(example(setting))
    assert word.startswith((f"{name}=", f"{name}."))
    key = name.removeprefix("stream.")
    kinds = [f"stream={kind}" for kind in ("uniform", "arrivals") if key in streams.KINDS[kind]]
    if name.startswith("stream.") and not kinds:
        return  # there is no such file
    if not name.startswith("stream."):
        kinds = []
    job = job_of([*kinds[:1], word])
    if not name.startswith(TOGETHER):
        validate(job)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bs", 2**31 - 1),
        ("protocol.rounds", 10_000),
        ("protocol.min_time_s", 0),
        ("sweep.seed", -5),
        ("model.tolerance", None),
    ],
)
def test_values_within_their_bounds(name, value):
    assert checked(SETTINGS[name], value) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bs", 2**31),
        ("bs", True),
        ("protocol.rounds", 10_001),
        ("protocol.budget_s", 0),
        ("protocol.min_time_s", -0.1),
        ("sweep.seed", -(2**31)),
        ("numerics.tf32", 2),
        ("stream.length", 10**6),
    ],
)
def test_values_out_of_bounds(name, value):
    with pytest.raises(ConfigError, match=f"{name}: expected .* got .* Example: {name}="):
        checked(SETTINGS[name], value)


#: Overrides of a job -> part of the error.
REFUSED = (
    ("model=mpl", "unknown model 'mpl': did you mean mlp?; own YAML: --config-dir=DIR"),
    ("model=my_net", "own module: model=custom model.module._target_=my_pkg.Net\nallowed: "),
    ("model=resnet5", "did you mean resnet"),
    ("model=bert", "did you mean bert-base?"),
    ("model=facebook/opt-125m", "model=transformers model.arch=facebook/opt-125m"),
    ("mode=my_mode", "with mode/my_mode.yaml in it\nallowed: aot-inductor, "),
    ("mode=", "unknown mode ''"),
    ("mode=egaer", "unknown mode 'egaer': did you mean eager?"),
    ("mode=3", "groups take a name, not a number"),
    ("stream=[uniform,arrivals]", "write stream=uniform,arrivals"),
    ("batch=2", "unknown setting 'batch': did you mean bs?"),
    ("tf32=true", "did you mean numerics.tf32?"),
    ("seed=1", "did you mean stream.seed or numerics.seed or sweep.seed?"),
    ("stream=uniform stream.lenght=8", "did you mean stream.length?"),
    ("+protocol.round=3", "did you mean protocol.rounds?"),
    ("model=mlp model.width=64", "did you mean model.module.width?"),
    ("model=mlp depth=2", "did you mean model.module.depth?"),
    ("model=custom model._target_=a.Net", "did you mean model.module._target_?"),
    ("model=custom model.x.shape=[3]", "did you mean model.inputs.x.shape?"),
    ("model.dtype=float32", "did you mean dtype?"),
    ("check=default model=tiny", "unknown setting 'check'"),
    ("bs.x=1", "unknown setting 'bs.x'"),
    # values
    ("bs=one", "bs: expected a whole number of at least 1, got 'one'. Example: bs=8"),
    ("bs=1.5", "bs: expected a whole number of at least 1, got 1.5."),
    ("bs=null", "got null."),
    ("bs=99999999999999999999", "of at least 1, within ±2,147,483,647, got 99999"),
    ("bs=[1,8]", "got [1,8]. To sweep over several values, write bs=1,8"),
    ("protocol.rounds=0", "protocol.rounds: expected a whole number from 1 to 10,000, got 0."),
    ("timeout_s=soon", "timeout_s: expected a number above 0, got 'soon'. Example: timeout_s=900"),
    ("protocol.host_tolerance=[1]", "expected a number above 0 or null, got [1]."),
    ("numerics.tf32=maybe", "expected true or false, got 'maybe'. Example: numerics.tf32=true"),
    ("dtype=float31", "bfloat16, float16, float32, float64, got 'float31'. Example: dtype=float32"),
    ("device=gpu", "device: expected one of auto, cpu, cuda, got 'gpu'. Example: device=cuda"),
    ("model.module=3", "expected values by name, got 3. Example: model.module.width=64"),
    ("model.inputs=[16]", "got [16]. Example: 'model.inputs.x.shape=[3,224,224]'"),
    ("env.A=null", "env: expected values by name, got {A:null}."),
    ("db=null", "db: expected text, got null. Example: db=results/effbench.db"),
    ("sweep=nightly", "takes no value, got 'nightly'. Set one of sweep.name, sweep.label"),
    ("model.module.how=nan", "nan and inf are not allowed as numbers"),
    ("+model.module.how=[1.0,inf]", "nan and inf are not allowed as numbers"),
    ("~bs", "~bs: every sweep requires it; omit the ~ override"),
    ("~model.module.nothing", "there is no such setting to remove"),
    ("model=transformers", "needs the name of a network: model.arch=NAME; `effbench models"),
    ("model=custom", "model.module._target_ has no value; give one with model.module._target_="),
    ("model=custom model.module._target_=torch.nn.Identity", "the model has no inputs"),
    ("model=mlp model.arch=gpt2", "the module of the model mlp does not take it"),
    ("model=timm model.arch=resnet18 model.seq=8", "model.seq has no effect"),
    ("stream=uniform stream.high=${model.name}", "stream.high: expected a whole number from 1 to"),
    ("stream=arrivals stream.rate=1", "fewer than protocol.min_samples=30"),
    ("stream=arrivals phase=training", "phase=training cannot run a stream"),
    ("stream=uniform phase=coldstart", "phase=coldstart cannot run a stream"),
    (
        "coldstart.change=model",
        "coldstart.change: expected one of bs, constant, folder, gpu, none,",
    ),
    ("coldstart.sizes=17", "coldstart.sizes: expected a whole number from 1 to 16, got 17"),
    ("cache=both", "cache: expected one of"),
    ("model=transformers model.task=prefill phase=generate", "needs model.task=decode"),
    ("model=tiny model.inputs.x.shape=[0]", "expected a list of positive integers"),
    ("exclude={bs:3}", "exclude must be a list of rules"),
)


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_refused_overrides(job_of, words, said):
    with pytest.raises((EffbenchError, HydraException)) as refusal:
        validate(job_of(words.split()))
    assert said in str(explain(refusal.value))


@pytest.mark.extra("transformers", "diffusers")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("model=transformers model.arch=NoSuchThing", "of transformers 'NoSuchThing'; see"),
        ("model=transformers model.arch=bert-bas", "did you mean bert-base?"),
        ("model=diffusers model.arch=FluxTransformer2Model", "did you mean FluxTransformer2DModel"),
    ],
)
def test_unknown_networks_are_refused_without_an_import(job_of, words, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        validate(job_of(words.split()))


@pytest.mark.extra("transformers", "diffusers")
@pytest.mark.parametrize(
    "words",
    [
        "model=transformers model.arch=google-bert/bert-base-uncased",
        "model=transformers model.arch=gpt-sw3",
        "model=diffusers model.arch=FluxTransformer2DModel",
        # their interpreters may have other releases
        "model=transformers model.arch=NoSuchThing python=venv/bin/python",
        "model=diffusers model.arch=NoSuchThing folder=checkout",
    ],
)
def test_networks_that_may_exist_are_not_refused(job_of, words):
    validate(job_of(words.split()))
