"""Every behaviour check on a GPU, as `reproduce` runs them; the undisputed facts, and the shape of
the others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from effbench.claims.definition import find
from effbench.core.cell import Status
from effbench.core.message import CheckRequest
from effbench.run.checks import run_checks
from effbench.run.probe import describe_machine

#: Smaller than by default, where that saves seconds.
SETTINGS = {
    "warmups": {"counts": [0, 2]},
    "memory": {"batch": 1024, "branches": 3},
    "calls": {"width": 64, "depth": 1, "processes": 2},
    "small": {"seq": 64, "count": 2, "layers": 2, "width": 256, "vocab": 512},
    "large": {
        "seq": 64,
        "count": 1,
        "layers": 2,
        "width": 256,
        "heads": 8,
        "kv_heads": 8,
        "vocab": 512,
    },
    "host_time": {"rounds": 20},
    "batch_sizes": {"models": ["mlp"], "batches": [1], "rounds": 8},
    "streams": {"length": 32, "largest": 8, "rounds": 8},
    "in_place": {"rounds": 8},
    "waits": {"rounds": 8},
    "gradients": {"rounds": 8},
}


@pytest.fixture(scope="module")
def facts(server):
    """Facts by the check's name. No check measures times that matter here, so several run at
    once."""
    asked = {
        name: CheckRequest(f"{experiment.path}:{name}", SETTINGS.get(name, {}), device="cuda")
        for experiment in find(["all"])
        for name in experiment.checks
    }
    gpus = describe_machine(server, "cuda").gpus
    with ThreadPoolExecutor(6) as threads:
        answers = threads.map(
            lambda request: run_checks([request], server, gpus, timeout_s=240)[0], asked.values()
        )
        outcomes = dict(zip(asked, answers, strict=True))
    failed = {name: outcome for name, outcome in outcomes.items() if outcome["status"] != Status.OK}
    assert {name: outcome["reason"] or outcome.get("log") for name, outcome in failed.items()} == {}
    return {name: outcome["facts"] for name, outcome in outcomes.items()}


def test_a_replay_follows_values(facts):
    found = facts["weights"]
    assert found["replay_equals_eager_at_first"]
    assert found["replay_follows_in_place_update"]


@pytest.mark.parametrize("change", ["rebinding", "dtype_change"])
def test_a_replay_does_not_follow_addresses(facts, change):
    found = facts["weights"]
    assert found[f"replay_is_stale_after_{change}"]
    assert not found[f"replay_follows_{change}"]
    assert found[f"capturing_again_follows_{change}"]


def test_a_replay_reads_the_old_addresses(facts):
    found = facts["weights"]
    rebinding = found["rebinding"]
    before = pytest.approx(rebinding["eager_before"], rel=1e-4, abs=1e-5)
    assert rebinding["replay"] == before
    if found["freed_address_was_given_away"]:
        assert found["replay_reads_what_took_the_freed_address"]
        assert found["freed_weight"]["replay"] == pytest.approx([28.0] * 4)


def test_what_capture_refuses(facts):
    for what in ("branch_on_data", "output_of_unknown_size", "copy_to_the_host"):
        found = facts["limits"][what]
        assert found["succeeded"], "the process that tried it ended by itself"
        assert found["capture_succeeded"] is False
        assert "Error" in found["capture_error_type"]
        assert "captur" in f"{found['capture_error']} {found['capture_first_error']}".lower()
        assert isinstance(found["eager_works_afterwards"], bool)


def test_what_capture_takes(facts):
    found = facts["limits"]
    assert found["branch_on_a_host_value"]["replay_follows_the_flag"] is False
    assert found["branch_on_a_host_value"]["replay"] == [2.0] * 4
    shape = found["other_shape"]
    assert shape["more_rows_fit_into_its_input"] is False
    assert (shape["rows_given"], shape["rows_replayed"]) == (3, 4)
    assert shape["rows_given_are_right"] and shape["last_row_is_of_the_call_before"]
    allocation = found["allocation_while_capturing"]
    assert allocation["succeeded"] and allocation["replay_equals_eager"]
    assert allocation["private_pool_growth_bytes"] >= allocation["tensor_bytes"]
    assert allocation["replays_write_to_one_address"]


@pytest.mark.parametrize("mode", ["eager", "default", "reduce-overhead"])
def test_first_calls(facts, mode):
    found = facts["calls"]["modes"][mode]
    assert found["ran"], found
    assert (len(found["calls"]), found["processes"]) == (10, 2)
    assert found["calls"]["1"]["value"] > 1
    assert found["steady_ms"]["value"] > 0


@pytest.mark.parametrize(("name", "compiles_again"), [("small", True), ("large", False)])
def test_seconds_of_compiling(facts, name, compiles_again):
    found = facts[name]
    assert found["compile_s"]["value"] > 0.1
    assert found["tree_bytes"]["value"] > 0
    assert ("again_s" in found) is ("warm_s" in found) is compiles_again


def test_a_warm_cache_saves_seconds(facts):
    assert facts["small"]["warm_s"] < facts["small"]["compile_s"]["low"]
