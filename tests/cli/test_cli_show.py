"""`effbench show` and `ls`: marks are explained once, and nothing is shown that has no content."""

import json

import pytest
from made_sweeps import Made, a_cell, environment, steps

from effbench.cli import run as run_cli

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


def on_cpu(latency_ms, rounds=5, **more):
    values = steps(latency_ms, 0.001)[:rounds]
    return {"latency_ms": values, **dict.fromkeys(OF_GPUS), **more}


@pytest.fixture
def database(tmp_path, monkeypatch):
    """Returns a function that records a CPU sweep of eager and default, and one that prints a
    command's output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def record(rounds=5, default=None, **eager):
        cells = {a_cell(device="cpu"): on_cpu(1.0, rounds, **eager)}
        cells[a_cell("default", device="cpu")] = on_cpu(0.5, rounds, **(default or {}))
        Made(tmp_path / "r.db").sweep(cells, env=CPU, rounds=rounds)

    return record


@pytest.fixture
def shown(capsys):
    def run(*words):
        assert run_cli([*words, "--db", "r.db"]) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    "command",
    ["show", "ls --cells", "show --format markdown", "report --format markdown"],
)
def test_marks_are_explained_once(command, database, shown):
    database(default=BUSY)
    text = shown(*command.split())
    assert text.count("measured on a disturbed machine") == 1
    assert text.count("host busy for 83 % of the timing") == 1 and "threads=1" in text
    assert "~" in text.replace("~ measured", "")
    assert "noisy" not in text and "host_tolerance" not in text


def test_marks_are_data(database, shown):
    database(default=BUSY)
    entry = json.loads(shown("show", "--format", "json"))["rows"][0]["cells"]["default"]
    facts = entry["marked"], entry["disturbance"], entry["best"]
    assert facts == (True, BUSY["disturbance"], False)


def test_figures_that_are_not_marked_have_no_note(database, shown):
    database(default=BUSY)
    assert "disturbed machine" not in shown("show", "--metric", "rel_error")


def test_without_marks_there_is_no_note(database, shown):
    database()
    assert "~" not in shown("show") and "★" in shown("show")


def test_on_a_cpu_why_is_one_line(database, shown):
    database()
    assert shown("show", "--why") == "bottlenecks need a GPU\n"
    assert shown("show", "--why", "--format", "markdown") == "bottlenecks need a GPU\n"
    assert len(json.loads(shown("show", "--why", "--format", "json"))) == 2, "programs get rows"


def test_a_metric_without_figures_has_no_table_and_no_definition(database, shown):
    database()
    text = shown("show", "--metric", "energy_mj")
    assert text.splitlines()[1:] == ["no cell of this sweep has energy_mj (energy per call)"]
    assert "lower is better" in shown("show", "--metric", "rel_error")


@pytest.mark.parametrize("command", ["show", "report --format markdown"])
def test_one_trial_has_no_interval_and_this_is_said_once(command, database, shown):
    database(rounds=1)
    text = shown(*command.split())
    assert text.lower().count("one trial: no interval") == 1
    assert "2.00×" in text and "★" not in text
