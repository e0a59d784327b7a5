"""From jobs to cells: validated, resolved, with the overrides that plan them again."""

import copy
import shlex

import pytest
import whole_sweeps as whole
from omegaconf import OmegaConf

from effbench.cell import Cell
from effbench.config import quoted
from effbench.errors import ConfigError, UsageError
from effbench.launcher import cells, overrides
from effbench.launcher.cells import resolve
from effbench.launcher.validation import validate
from effbench.store import Store
from effbench.sweeping.plan import Settings
from effbench.sweeping.progress import Progress
from effbench.sweeping.run import Command

PART = {
    "model": {
        "name": None,
        "description": "words",
        "module": {"_target_": "a.b.Net"},
        "inputs": {"x": {"shape": [4]}},
        "tolerance": None,
        "allow_nonfinite": False,
    },
    "bs": 1,
    "mode": {"name": "eager", "description": "words", "_target_": "effbench.modes.eager.Eager"},
    "dtype": "auto",
    "phase": "inference",
    "device": "auto",
    "numerics": {"seed": 0},
    "env": {},
}


def part(**changed):
    return {**copy.deepcopy(PART), **changed}


def model(**changed):
    return {**PART["model"], **changed}


def keys(*parts):
    return {cell.key for cell in resolve(parts, has_cuda=False)}


@pytest.mark.parametrize(
    ("changed", "has_cuda", "expected"),
    [
        ({}, True, ("cuda", "bfloat16")),
        ({}, False, ("cpu", "float32")),
        ({"device": "cpu", "dtype": "float16"}, True, ("cpu", "float16")),
    ],
)
def test_auto_is_decided_by_the_machine(changed, has_cuda, expected):
    (cell,) = resolve([part(**changed)], has_cuda=has_cuda)
    assert (cell.device, cell.dtype) == expected


def test_what_defines_a_cell():
    assert len(keys(part(), part(model=model(description="other words")))) == 1
    orders = [
        part(model=model(inputs={name: {"shape": [4]} for name in order})) for order in ("xy", "yx")
    ]
    assert len(keys(*orders)) == 2, "the order of inputs is that of forward's arguments"
    (cell,) = resolve([part(env={"A": 1, "B": True, "C": "x", "D": 0.5})], has_cuda=False)
    assert cell.env == {"A": "1", "B": "true", "C": "x", "D": "0.5"}, "as it was typed"


@pytest.mark.parametrize(
    ("target", "name"),
    [("a.b.Net", "Net"), ("nets/mine.py:Net", "Net"), ("nets/mine.py:Net.Inner", "Inner")],
)
def test_names_of_models(target, name):
    (cell,) = resolve([part(model=model(module={"_target_": target}))], has_cuda=False)
    assert cell.model_name == name


def test_two_names_of_a_module_are_two_models():
    assert len(keys(part(), part(model=model(name="Net2", module={"_target_": "c.Net"})))) == 2


def test_training_belongs_to_a_cell_only_in_its_phase():
    training = {
        "optimizer": "adam",
        "implementation": "foreach",
        "lr": 1e-4,
        "loss": "mean",
        "set_to_none": True,
    }
    slower = {**training, "lr": 1e-5}
    assert len(keys(part(training=training), part(training=slower))) == 1
    trained, other = resolve(
        [part(phase="training", training=one) for one in (training, slower)], has_cuda=False
    )
    assert trained.params()["training"] == training
    assert trained.key != other.key
    assert Cell.from_params(trained.params()) == trained


def test_numerics_of_later_versions_leave_the_keys_of_older_cells(compose):
    ((old,), _) = cells.split([cells.Job([], compose([]))])
    later = {"channels_last": False, "quantize": None, "grad_mode": "auto"}
    assert later.items() <= old["numerics"].items()
    older = {
        **old,
        "numerics": {key: value for key, value in old["numerics"].items() if key not in later},
    }
    assert len(keys(old, older)) == 1
    changed = [
        {**old, "numerics": {**old["numerics"], "grad_mode": mode}}
        for mode in ("inference", "no_grad", "grad")
    ]
    assert len(keys(old, *changed)) == 4


def test_all_names_of_a_network_are_one_cell(compose):
    def cell_of(*words):
        parts, _ = cells.split([cells.Job([], compose(["model=transformers", *words]))])
        return resolve(parts, has_cuda=False)[0]

    short = cell_of("model.arch=bert-base")
    assert short.model_name == "bert-base"
    for name in ("bert-base-uncased", "google-bert/bert-base-uncased"):
        assert cell_of(f"model.arch={name}").key == short.key
    assert cell_of("model.arch=bert-base-uncased", "model.name=mine").model_name == "mine"
    assert cell_of("model.arch=roberta-base").key != short.key


@pytest.mark.parametrize("words", [["phase=training"], ["numerics.grad_mode=no_grad"]])
def test_a_phase_with_gradients_or_a_setting_without(compose, words):
    validate(compose(words), set(), words)


def test_training_records_gradients_whatever_the_setting(compose):
    words = ["phase=training", "numerics.grad_mode=no_grad"]
    with pytest.raises(ConfigError, match="grad_mode=no_grad: phase=training"):
        validate(compose(words), set(), words)


def test_a_request_belongs_to_a_cell_only_in_its_phase(compose):
    requests = [{"prompt": 8, "new_tokens": tokens} for tokens in (4, 5)]
    assert len(keys(*(part(generate=request) for request in requests))) == 1
    assert len(keys(*(part(phase="generate", generate=request) for request in requests))) == 2
    words = ["model=transformers", "model.arch=gpt2", "generate.prompt=8", "generate.new_tokens=4"]
    for phase, expected in (("inference", (None, 128)), ("generate", ("decode", 12))):
        (made,), _ = cells.split([cells.Job([], compose([*words, f"phase={phase}"]))])
        assert (made["model"]["module"]["task"], made["model"]["module"]["seq"]) == expected


def test_an_unset_number_of_threads_leaves_older_keys_valid():
    (without,), (unset,) = (resolve([one], has_cuda=False) for one in (part(), part(threads=None)))
    assert unset.key == without.key
    assert "threads" not in unset.params()


def test_threads_are_an_axis_whose_values_are_not_compared_with_each_other():
    one, two = resolve([part(threads=1), part(threads=2)], has_cuda=False)
    assert (one.params()["threads"], two.params()["threads"]) == (1, 2)
    assert one.comparison_key != two.comparison_key
    assert Cell.from_params(two.params()) == two


@pytest.mark.parametrize(
    ("words", "expected"), [([], None), (["threads=3"], 3), (["threads=null"], None)]
)
def test_threads_are_composed(compose, words, expected):
    (cell,) = resolve([compose(words)], has_cuda=False)
    assert cell.threads == expected


@pytest.mark.parametrize(
    ("protocol", "patience"), [("quick", 1.5), ("standard", 2.0), ("advise", 1.5)]
)
def test_how_long_each_protocol_waits_for_a_quiet_host(compose, protocol, patience):
    settings = compose([f"protocol={protocol}"])["protocol"]
    assert settings["patience"] == patience


def test_slots_that_a_request_sets_itself_are_a_warning(compose, capsys):
    words = ["model=transformers", "model.arch=gpt2", "model.task=decode", "model.seq=8"]
    for phases, warned in ((["generate"], True), (["generate", "inference"], False)):
        jobs = [cells.Job([], compose([*words, f"phase={phase}"])) for phase in phases]
        cells.prepare(jobs, Command([], words, progress=Progress()))
        assert ("warning: model.seq=8 has no effect" in capsys.readouterr().out) == warned


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        ("model.module.how", float("nan"), "nan and inf are not allowed"),
        ("model.module.how", [1.0, float("inf")], "nan and inf are not allowed"),
        ("protocol.max_samples", 10, r"max_samples must be at least protocol\.min_samples"),
        (
            "protocol.enough_interval",
            0.0,
            r"protocol\.enough_interval: expected a number above 0, or null, got 0",
        ),
        ("sweep.name", "last", "sweep.name=last is reserved for the newest sweep"),
        ("sweep.name", "confirm:x", "reserved for reruns by effbench check"),
        ("env", "x", "env: expected texts or numbers by names .*, got 'x'"),
        ("env", {"CUDA_VISIBLE_DEVICES": 1}, "select GPUs with executor.gpus"),
        (
            "mode.name",
            5,
            "mode: name must be text, got 5; the YAML of a mode requires name and _target_",
        ),
        ("threads", 0, "threads: expected .* at least 1, or null, got 0"),
        ("threads", -2, "threads: expected .* at least 1, or null, got -2"),
        ("protocol.patience", 0.5, r"protocol\.patience: expected .* at least 1, got 0\.5"),
    ],
)
def test_what_validation_refuses(compose, path, value, error):
    config = OmegaConf.create(compose([]))
    OmegaConf.update(config, path, value)
    with pytest.raises(ConfigError, match=error):
        validate(OmegaConf.to_container(config), set(), [])


def test_the_defaults_are_valid(compose):
    validate(compose([]), set(), [])


def test_defaults_of_a_sweep_without_a_command_line(compose):
    settings = Settings.with_defaults(db="x.db", protocol={"rounds": 10}, timeout_s=5.0)
    _, composed = cells.split(
        [cells.Job([], compose(["db=x.db", "timeout_s=5", "protocol.rounds=10"]))]
    )
    assert settings == composed


class TestAgain:
    """The overrides stored with a cell plan it again."""

    def again(self, compose, words, dropped=()):
        kept = overrides.overrides_of_cell(words, dropped)
        assert shlex.split(shlex.join(kept)) == kept
        return [cell.key for cell in resolve([compose(kept)], has_cuda=False)]

    @pytest.mark.parametrize(
        "words",
        [
            ["model=bert-base", "model.module.seq=16", "~model.inputs.attention_mask"],
            [
                "model=custom",
                "model.module._target_=a.B",
                "model.module.how='so, {it} is'",
                "model.inputs.b.shape=[1]",
            ],
            [
                "mode=default",
                "mode.options={max_autotune:true,triton.cudagraphs:false}",
                "+mode.extra=x",
            ],
            [
                "numerics.tf32=true",
                "dtype=float16",
                "env.TEXT='a b'",
                "phase=training",
                "training.lr=0.01",
            ],
            ["model=gpt2", "stream=uniform", "stream.length=8", "stream.high=9"],
            ["model=mlp", "numerics.channels_last=true"],
            ["model=mlp", "threads=2"],
        ],
        ids=" ".join,
    )
    def test_the_same_key(self, compose, words):
        (cell,) = resolve([compose(words)], has_cuda=False)
        of_sweep = [
            "sweep.name=x",
            "baseline_mode=default",
            "db=y.db",
            "resume=null",
            "folder=/x",
            "python=/y",
            "hydra/sweeper=basic",
        ]
        assert self.again(compose, [*of_sweep, *words]) == [cell.key]
        assert overrides.overrides_of_cell(of_sweep) == []

    def test_without_what_the_baseline_dropped(self, compose):
        words = ["mode=eager", "+mode.fullgraph=true", "bs=2"]
        assert overrides.overrides_of_cell(words, {"mode.fullgraph"}) == ["mode=eager", "bs=2"]

    @pytest.mark.parametrize(
        "text", ["/a/b.py", "a b", "a,b={c}", "it's", 'say "so"', "back\\slash", 'back\\"', "end\\"]
    )
    def test_a_path_is_read_back(self, compose, text):
        assert compose([f"folder={quoted(text)}"])["folder"] == text


class TestWords:
    def test_options_first_overrides_in_their_order(self):
        words = ["bs=1", "-m", "mode=eager", "--config-dir", "conf", "~env", "+a=b"]
        arranged = overrides.arrange(words)
        assert arranged == ["--config-dir=conf", "bs=1", "mode=eager", "~env", "+a=b"]

    @pytest.mark.parametrize(
        ("words", "arranged"),
        [
            ("-m --cfg job", ["--cfg=job"]),
            ("--cfg=job --run", ["--cfg=job"]),
            ("-m -i", ["--info=all"]),
            ("bs=2 --hydra-help", ["--hydra-help", "bs=2"]),
        ],
    )
    def test_options_that_print(self, words, arranged):
        assert overrides.arrange(words.split()) == arranged
        assert overrides.prints_only(arranged)

    def test_a_sweep_continues_where_it_was_found(self, tmp_path):
        """Not where the stored word says: that may be another database, and has no password."""
        assert overrides.expand(["-m", "resume=null"]) == (["-m", "resume=null"], ["resume=null"])
        path = tmp_path / "x.db"
        with Store.open(path, mode="write") as store:
            sweep_id = whole.sweep(
                store,
                overrides=[
                    "bs=1",
                    "db=postgresql://me:***@host/x",
                    "mode=eager",
                    "protocol.max_warmup_calls=9",
                ],
            )
        words, _ = overrides.expand(["resume=last", f"db={path}"])
        assert words == ["bs=1", "mode=eager", f"db={path}", f"resume={sweep_id}"]
        with Store.open(path, mode="write") as store:
            sweep_id = whole.sweep(
                store, overrides=["--config-dir=own"], host={"folder": "/of/the/sweep"}
            )
        with pytest.raises(
            UsageError, match=f"own: no such folder here; sweep {sweep_id} began in /of/the/sweep: "
        ):
            overrides.expand([f"resume={sweep_id}", f"db={path}"])
        words, _ = overrides.expand(["--config-dir=other", f"resume={sweep_id}", f"db={path}"])
        assert words[0] == "--config-dir=other"
