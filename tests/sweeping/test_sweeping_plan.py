"""From configurations to cells, orders and words."""

from __future__ import annotations

import copy

import pytest

from effbench.analysis.row_labels import cell_names
from effbench.cell import Cell, Status
from effbench.cli import COMMANDS
from effbench.errors import ConfigError, UsageError
from effbench.sweeping import arguments, plan, resume
from effbench.sweeping.interpreters import Unit
from effbench.sweeping.jobs import jobs_of
from effbench.sweeping.progress import duration
from effbench.sweeping.sites import fit_settings

PART = {
    "model": {"name": None, "description": "words", "module": {"_target_": "a.b.Net"}, "inputs": {"x": {"shape": [4]}},
              "tolerance": None, "allow_nonfinite": False},
    "bs": 1,
    "mode": {"name": "eager", "description": "words", "_target_": "effbench.modes.eager.Eager"},
    "dtype": "auto",
    "phase": "inference",
    "device": "auto",
    "numerics": {"seed": 0},
    "env": {},
}  # fmt: skip


def part(**changed):
    return {**copy.deepcopy(PART), **changed}


def model(**changed):
    return {**PART["model"], **changed}


def cells(count):
    return [Cell({"name": "m"}, bs, {"name": "eager"}, "float32", "inference", "cpu") for bs in range(1, count + 1)]


def units(count):
    return [Unit(cell) for cell in cells(count)]


@pytest.mark.parametrize(("cuda", "device", "dtype"), [(True, "cuda", "bfloat16"), (False, "cpu", "float32")])
def test_auto_is_decided_by_the_machine(cuda, device, dtype):
    (cell,) = plan.resolve([part()], has_cuda=cuda)
    assert (cell.device, cell.dtype) == (device, dtype)


def test_what_is_asked_for_stays():
    (cell,) = plan.resolve([part(device="cpu", dtype="float16")], has_cuda=True)
    assert (cell.device, cell.dtype) == ("cpu", "float16")


@pytest.mark.parametrize(
    ("target", "name"), [("a.b.Net", "Net"), ("nets/mine.py:Net", "Net"), ("nets/mine.py:Net.Inner", "Inner")]
)
def test_a_name_is_the_last_part_of_the_target(target, name):
    (cell,) = plan.resolve([part(model=model(module={"_target_": target}))], has_cuda=False)
    assert cell.model_name == name


def test_descriptions_define_nothing():
    other = part(model=model(description="other words"))
    assert len(plan.resolve([part(), other], has_cuda=False)) == 1


def test_the_order_of_inputs_defines_the_cell():
    xy, yx = (part(model=model(inputs={name: {"shape": [4]} for name in order})) for order in ("xy", "yx"))
    assert len({cell.key for cell in plan.resolve([xy, yx], has_cuda=False)}) == 2


def test_env_as_it_was_typed():
    (cell,) = plan.resolve([part(env={"A": 1, "B": True, "C": "x", "D": 0.5})], has_cuda=False)
    assert cell.env == {"A": "1", "B": "true", "C": "x", "D": "0.5"}


def test_each_cell_once_in_the_order_of_the_matrix():
    found = plan.resolve([part(bs=bs) for bs in (4, 1, 4, 2)], has_cuda=False)
    assert [cell.bs for cell in found] == [4, 1, 2]


def test_two_modules_must_not_share_a_name():
    other = part(model=model(module={"_target_": "c.Net"}))
    with pytest.raises(ConfigError, match="share the name Net"):
        plan.resolve([part(), other], has_cuda=False)
    other["model"]["name"] = "Net2"
    assert len(plan.resolve([part(), other], has_cuda=False)) == 2


class TestRounds:
    def test_every_cell_once_a_round_and_rounds_in_order(self):
        jobs = jobs_of(units(20), 4, 0, {})
        assert [job.round for job in jobs] == [0] * 20 + [1] * 20 + [2] * 20 + [3] * 20
        for number in range(4):
            assert sorted(job.cell.bs for job in jobs if job.round == number) == list(range(1, 21))

    def test_the_order_is_random_seeded_and_another_in_each_round(self):
        def orders(seed):
            jobs = jobs_of(units(20), 3, seed, {})
            return [tuple(job.cell.bs for job in jobs if job.round == number) for number in range(3)]

        assert orders(1) == orders(1)
        assert len({*orders(1), *orders(2), tuple(range(1, 21))}) == 7

    def test_what_is_recorded_or_has_failed_is_not_run(self):
        one, two, three = units(3)
        recorded = {(one.key, 0): Status.OK, (two.key, 0): Status.OOM, (three.key, 1): Status.DEGRADED}
        left = {(job.cell.bs, job.round) for job in jobs_of([one, two, three], 3, 0, recorded)}
        assert left == {(1, 1), (1, 2), (3, 0), (3, 2)}


class TestWords:
    def arrange(self, *words):
        return arguments.arrange(list(words), COMMANDS)

    def test_options_first_overrides_in_their_order(self):
        found = self.arrange("bs=1", "-m", "mode=eager", "--config-dir", "conf", "~env", "+a=b")
        assert found == ["--multirun", "--config-dir=conf", "bs=1", "mode=eager", "~env", "+a=b"]

    @pytest.mark.parametrize("words", [["-m", "--cfg", "job"], ["--cfg=job", "--run"], ["-m", "-i"]])
    def test_showing_something_is_no_sweep(self, words):
        assert not {"--multirun", "--run"} & set(self.arrange(*words))

    @pytest.mark.parametrize(
        ("word", "said"), [("shwo", "effbench show --help"), ("bs", "key=value"), ("@x", "key=value")]
    )
    def test_words_that_are_no_overrides(self, word, said):
        with pytest.raises(UsageError, match=said):
            self.arrange("bs=1", word)

    def test_an_unknown_option(self):
        with pytest.raises(UsageError, match="--nope"):
            self.arrange("--nope")


@pytest.mark.parametrize(
    ("word", "key"),
    [("bs=1", "bs"), ("+a.b=1", "a.b"), ("++a=1", "a"), ("~a", "a"), ("-m", None), ("--cfg=job", None),
     ("mode=compile+graph", "mode"), ("hydra/sweeper=basic", "hydra/sweeper"), ("db='a=b'", "db")],
)  # fmt: skip
def test_the_key_of_a_word(word, key):
    assert resume.key_of(word) == key


def test_without_resume_the_command_stays_as_it_is():
    assert resume.expand(["-m", "bs=1,2", "resume=null"]) == (
        ["-m", "bs=1,2", "resume=null"],
        ["bs=1,2", "resume=null"],
    )


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (75, "1 min 15 s"), (3600, "1 h 00 min")]
)
def test_durations(seconds, said):
    assert duration(seconds) == said


def mode_part(name: str, **settings) -> dict:
    return {"mode": {"name": name, "_target_": f"x.{name}", **settings}}


def test_the_baseline_leaves_out_what_only_other_modes_have():
    parts = [mode_part("eager", fullgraph=True), mode_part("default", fullgraph=True)]
    known = {str(parts[0]["mode"]): [], str(parts[1]["mode"]): ["fullgraph"]}
    assert fit_settings(parts, known, "eager") == []
    assert parts == [mode_part("eager"), mode_part("default", fullgraph=True)]


def test_a_setting_that_no_mode_has_is_wrong_for_the_baseline_too():
    parts = [mode_part("eager", fulgraph=True), mode_part("default", fulgraph=True)]
    known = {str(parts[0]["mode"]): [], str(parts[1]["mode"]): ["fullgraph"]}
    assert [error.partition(";")[0] for error in fit_settings(parts, known, "eager")] == [
        "mode eager has no setting 'fulgraph'",
        "mode default has no setting 'fulgraph'",
    ]


def test_any_other_mode_must_have_the_setting():
    parts = [mode_part("cuda-graph", fullgraph=True), mode_part("default", fullgraph=True)]
    known = {str(parts[0]["mode"]): ["warmups"], str(parts[1]["mode"]): ["fullgraph"]}
    assert fit_settings(parts, known, "eager") == ["mode cuda-graph has no setting 'fullgraph'; it has: warmups"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1.0, float("nan")]])
def test_what_is_no_finite_number_is_named(value):
    with pytest.raises(ConfigError, match=r"model\.module\.how"):
        plan.check_finite({"model": {"module": {"how": value}}})


def test_names_tell_swept_cells_apart():
    def cell(how, mode):
        model = {"name": "Net", "module": {"_target_": "a.Net", "how": how}, "inputs": []}
        return Cell(model, 2, mode, "float32", "inference", "cpu")

    eager = {"name": "eager", "_target_": "e"}
    cells = [cell("fast", eager), cell("slow", eager), cell("slow", {"name": "default", "_target_": "d"})]
    assert list(cell_names(cells).values()) == [
        "Net how=fast bs=2 eager float32",
        "Net how=slow bs=2 eager float32",
        "Net how=slow bs=2 default float32",
    ]


TRAINING = {"optimizer": "adam", "implementation": "foreach", "lr": 1e-4, "loss": "mean", "set_to_none": True}


def test_training_belongs_to_a_cell_only_in_its_phase():
    called, again, trained, slower = plan.resolve(
        [
            part(training=TRAINING),
            part(bs=2),
            part(phase="training", training=TRAINING),
            part(phase="training", training={**TRAINING, "lr": 1e-5}),
            part(training={**TRAINING, "lr": 1e-5}),
        ],
        has_cuda=False,
    )
    assert "training" not in called.params() and "training" not in again.params()
    assert trained.params()["training"] == TRAINING
    assert len({called.key, trained.key, slower.key}) == 3
    assert [Cell.from_params(cell.params()) for cell in (called, trained)] == [called, trained]


def test_the_key_of_an_inference_cell_is_what_it_ever_was():
    """Results of older versions are found by it."""
    model = {"name": "m", "module": {"_target_": "a.b"}, "inputs": [{"name": "x", "shape": [4]}], "tolerance": None,
             "allow_nonfinite": False}  # fmt: skip
    mode = {"name": "eager", "_target_": "effbench.modes.eager.Eager"}
    cell = Cell(model, 8, mode, "float32", "inference", "cpu", {"seed": 0}, {})
    assert cell.key == "15024173009629151273310d62da4c093a49dc8409bf40854e4a7c3974e899cc"
