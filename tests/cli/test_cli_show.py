"""`effbench show` and `ls`: marks are explained once, and nothing is shown that has no content."""

import json

import pytest
from made_sweeps import DEFAULT, EAGER, a_cell, environment, steps

CPU = environment(
    gpu_name=None,
    gpu_memory_bytes=None,
    driver_version=None,
    cuda_version=None,
    triton_version=None,
)
OF_GPUS = (
    "period_ms",
    "gpu_busy_ms",
    "energy_mj",
    "kernels",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
)
BUSY = {"disturbance": "host busy for 83 % of the timing"}


@pytest.fixture
def shown(made, effbench, monkeypatch):
    """Returns a function that prints what a command says of a CPU sweep of eager and default."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(command, **default):
        on_cpu = dict.fromkeys(OF_GPUS)
        eager = {**on_cpu, "latency_ms": steps(1.0, 0.001)}
        faster = {**on_cpu, "latency_ms": steps(0.5, 0.001), **default}
        cells = {a_cell(device="cpu"): eager, a_cell("default", device="cpu"): faster}
        made.sweep(cells, env=CPU)
        done = effbench(*command.split())
        assert done.code == 0
        return done.out

    return run


@pytest.mark.parametrize(
    "command",
    ["show", "show --format markdown"],
)
def test_marks_are_explained_once(command, shown):
    text = shown(command, **BUSY)
    assert text.count("measured on a disturbed machine") == 1
    assert text.count(BUSY["disturbance"]) == 1 and "threads=1" in text
    assert "~" in text.replace("~ measured", "")


def test_figures_that_are_not_marked_have_no_note(shown):
    assert "disturbed machine" not in shown("show --metric rel_error", **BUSY)


def test_the_winner_has_a_star_and_a_sentence(shown):
    text = shown("show")
    assert "★" in text and "~" not in text
    assert "mlp: latency at bs 8: default." in text


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_on_a_cpu_why_is_one_line(form, shown):
    assert shown(f"show --why --format {form}") == "bottlenecks need a GPU\n"


def test_programs_get_rows_without_bottlenecks(shown):
    assert len(json.loads(shown("show --why --format json"))) == 2


def test_a_metric_without_figures_has_no_table_and_no_definition(shown):
    text = shown("show --metric energy_mj")
    assert text.splitlines()[1:] == ["no cell of this sweep has energy_mj (energy per call)"]


def test_a_metric_is_defined(shown):
    assert "lower is better" in shown("show --metric rel_error")


def test_several_metrics_are_rows_of_one_table(shown):
    text = shown("show --metric latency_ms rel_error")
    assert text.count("┏") == 1
    for words in ("metric", "latency", "relative error"):
        assert words in text


def test_a_metric_that_was_not_measured_is_not_defined(shown):
    text = shown("show --metric latency_ms peak_reserved_bytes")
    assert "peak reserved: not measured" in text
    assert "graph pools included" not in text


def test_failures_are_listed_by_reason(made, effbench):
    failure = {"status": "error", "reason": "boom"}
    made.sweep({EAGER: {}, DEFAULT: failure, a_cell("default", bs=16): failure})
    names = "mlp bs=8 default bfloat16, mlp bs=16 default bfloat16"
    assert f"\n{names}: error: boom\n" in effbench("show").out


def test_planned_cells_without_a_result_are_listed_after_the_others(made, effbench):
    made.sweep({EAGER: None, DEFAULT: {}})
    _, first, last = effbench("ls", "--cells").out.splitlines()
    assert first.startswith(DEFAULT.key[:12]) and "not run yet" not in first
    assert last.startswith(EAGER.key[:12]) and "not run yet" in last
