"""From configurations to cells: validated, resolved, with the overrides that plan them again."""

import pytest

from effbench.config import cells
from effbench.config.validation import validate
from effbench.core.cell import Cell
from effbench.core.errors import ConfigError
from effbench.run.plan import Settings

CUSTOM = ("model=custom", "model.inputs.x.shape=[4]")
GPT2 = ("model=transformers", "model.arch=gpt2")


@pytest.mark.parametrize(
    ("words", "has_cuda", "expected"),
    [
        ([], True, ("cuda", "bfloat16")),
        ([], False, ("cpu", "float32")),
        (["device=cpu", "dtype=float16"], True, ("cpu", "float16")),
    ],
)
def test_auto_is_decided_by_the_machine(cell_of, words, has_cuda, expected):
    cell = cell_of(*words, has_cuda=has_cuda)
    assert (cell.device, cell.dtype) == expected


#: Overrides of two cells, and whether they are the same cell.
PAIRS = (
    ("model.description=other", "", True),
    ("mode.description=other", "", True),
    ("threads=null", "", True),
    ("threads=1", "threads=2", False),
    ("training.lr=1", "", True),
    ("phase=training training.lr=1", "phase=training", False),
    ("generate.prompt=8", "", True),
    ("phase=generate generate.prompt=8", "phase=generate", False),
    ("coldstart.sizes=2", "", True),
    ("cache=folder", "", True),
    ("phase=coldstart coldstart.sizes=2", "phase=coldstart", False),
    ("phase=coldstart cache=folder", "phase=coldstart", False),
    ("phase=coldstart cache=none", "phase=coldstart", True),
    ("numerics.grad_mode=auto numerics.channels_last=false", "", True),
    ("numerics.grad_mode=no_grad", "", False),
    (
        "model=transformers model.arch=gpt2",
        "model=transformers model.arch=openai-community/gpt2",
        True,
    ),
    ("model=transformers model.arch=gpt2", "model=transformers model.arch=distilgpt2", False),
    ("model=torchvision model.arch=vgg11", "model=timm model.arch=vgg11", False),
    (
        "model=custom model.inputs.x.shape=[4] model.module._target_=a.Net model.name=x",
        "model=custom model.inputs.x.shape=[4] model.module._target_=b.Net model.name=x",
        False,
    ),
    (
        "model.inputs={a:{shape:[4]},b:{shape:[4]}}",
        "model.inputs={b:{shape:[4]},a:{shape:[4]}}",
        False,  # the order of forward's arguments
    ),
)


@pytest.mark.parametrize(("words", "others", "is_same"), PAIRS)
def test_what_defines_a_cell(cell_of, words, others, is_same):
    assert (cell_of(*words.split()).key == cell_of(*others.split()).key) == is_same


@pytest.mark.parametrize(
    "words",
    [
        ["phase=training"],
        ["phase=generate"],
        ["phase=coldstart", "cache=bundle"],
        ["threads=2"],
        ["stream=uniform"],
    ],
)
def test_a_cell_is_read_back(cell_of, words):
    cell = cell_of("model=gpt2", *words)
    assert Cell(**cell.params()) == cell


def test_environment_variables_are_as_they_were_typed(cell_of):
    assert cell_of("env={A:1,B:true,C:0.5}").env == {"A": "1", "B": "true", "C": "0.5"}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("model=custom model.inputs.x.shape=[4] model.module._target_=a.b.Net", "Net"),
        ("model=custom model.inputs.x.shape=[4] model.module._target_='a/b.py:Net.Inner'", "Inner"),
        ("model=transformers model.arch=google-bert/bert-base-uncased", "bert-base"),
        ("model=transformers model.arch=bert-base-uncased model.name=mine", "mine"),
    ],
)
def test_names_of_models(cell_of, words, name):
    assert cell_of(*words.split()).model_name == name


def test_threads_are_an_axis_whose_values_are_not_compared_with_each_other(cell_of):
    assert cell_of("threads=1").comparison_key != cell_of("threads=2").comparison_key


@pytest.mark.parametrize(
    ("words", "is_shared"),
    [
        ("cache=folder", True),
        ("cache=bundle coldstart.change=bs coldstart.processes=4", True),
        ("coldstart.sizes=2", False),
        ("bs=2", False),
        ("mode=default", False),
        ("phase=inference", False),
    ],
)
def test_which_cells_share_what_fills_their_cache(cell_of, words, is_shared):
    filling = cell_of("phase=coldstart")
    assert filling.cold_key == filling.key
    assert (cell_of("phase=coldstart", *words.split()).cold_key == filling.key) == is_shared


def test_a_cold_start_is_compared_with_eager_which_has_no_cache(cell_of):
    eager = cell_of("phase=coldstart")
    cached = cell_of("phase=coldstart", "cache=folder", "mode=default")
    changed = cell_of("phase=coldstart", "coldstart.change=bs", "cache=folder", "mode=default")
    assert cached.comparison_key == eager.comparison_key != changed.comparison_key


@pytest.mark.parametrize(
    ("phase", "expected"), [("inference", (None, 128)), ("generate", ("decode", 12))]
)
def test_a_request_sets_the_slots_of_the_cache(cell_of, phase, expected):
    cell = cell_of(*GPT2, "generate.prompt=8", "generate.new_tokens=4", f"phase={phase}")
    module = cell.model["module"]
    assert (module["task"], module["seq"]) == expected


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("protocol.max_samples=10", "max_samples must be at least protocol"),
        ("sweep.name=last", "sweep.name=last is reserved"),
        ("sweep.name='confirm:x'", "is reserved"),
        ("env.CUDA_VISIBLE_DEVICES=1", "setting it for effbench itself"),
        ("mode.name=5", "mode: name is missing or no text; the YAML of a mode requires name"),
        ("mode=default mode.name=5", "mode=default: name is missing or no text"),
        ("phase=training numerics.grad_mode=no_grad", "grad_mode=no_grad: phase=training"),
    ],
)
def test_what_validation_refuses(job_of, words, error):
    with pytest.raises(ConfigError, match=error):
        validate(job_of(words.split()))


def test_defaults_of_a_sweep_without_a_command_line(job_of):
    _, composed = cells.split([job_of(["db=x.db", "timeout_s=5", "protocol.rounds=10"])])
    assert Settings.with_defaults(db="x.db", protocol={"rounds": 10}, timeout_s=5.0) == composed


@pytest.mark.parametrize(
    "words",
    [
        ["model=bert-base", "model.module.seq=16", "~model.inputs.attention_mask"],
        [*CUSTOM, "model.module._target_=a.B", "model.module.how='so, {it} is'"],
        ["mode=default", "mode.options={max_autotune:true,triton.cudagraphs:false}", "+mode.a=x"],
        ["numerics.tf32=true", "env.TEXT='a b'", "phase=training", "training.lr=0.01"],
        ["model=gpt2", "stream=uniform", "stream.length=8", "stream.high=9"],
        ["phase=coldstart", "cache=folder", "coldstart.change=bs"],
    ],
    ids=" ".join,
)
def test_stored_overrides_plan_the_cell_again(cell_of, job_of, words):
    of_sweep = ["sweep.name=x", "baseline_mode=default", "db=y.db", "resume=null", "folder=/x"]
    job = job_of([*of_sweep, "python=/y", *words])
    stored = cells.overrides_of_cell(job, cell_of(*words))
    assert cell_of(*stored).key == cell_of(*words).key
    assert stored == words


def test_stored_overrides_are_without_those_that_have_no_effect(cell_of, job_of):
    of_phases = ["training.lr=1", "cache=folder", "coldstart.sizes=2"]
    job = job_of(["mode=eager", "+mode.fullgraph=true", "bs=2", *of_phases])
    cell = cell_of("mode=eager", "bs=2")  # the baseline without settings of other modes
    assert cells.overrides_of_cell(job, cell) == ["mode=eager", "bs=2"]
