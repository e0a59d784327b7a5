"""Every behaviour check on a GPU, as `reproduce` runs them; the undisputed facts, and the shape of
the others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from effbench.cell import Status
from effbench.experiments.definition import load, load_all
from effbench.experiments.run import Machine
from effbench.message import CheckRequest
from effbench.sweeping.checks import run_checks

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
        name: CheckRequest(f"{outline.path}:{name}", SETTINGS.get(name, {}), device="cuda")
        for outline in load_all()
        for name in load(outline.path).checks
    }
    gpus = Machine.here(server, "cuda").probed["gpus"]
    with ThreadPoolExecutor(6) as threads:
        answers = threads.map(
            lambda request: run_checks([request], server, gpus, timeout_s=240)[0], asked.values()
        )
        outcomes = dict(zip(asked, answers, strict=True))
    failed = {name: outcome for name, outcome in outcomes.items() if outcome["status"] != Status.OK}
    assert {name: outcome["reason"] or outcome.get("log") for name, outcome in failed.items()} == {}
    return {name: outcome["facts"] for name, outcome in outcomes.items()}


def test_a_replay_follows_values_and_not_addresses(facts):
    found = facts["weights"]
    assert found["replay_equals_eager_at_first"]
    assert found["replay_follows_in_place_update"]
    assert found["replay_is_stale_after_rebinding"] and not found["replay_follows_rebinding"]
    assert found["rebinding"]["replay"] == pytest.approx(
        found["rebinding"]["eager_before"], rel=1e-4, abs=1e-5
    )
    assert found["replay_is_stale_after_dtype_change"] and not found["replay_follows_dtype_change"]
    assert (
        found["capturing_again_follows_rebinding"] and found["capturing_again_follows_dtype_change"]
    )
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


def test_padding_and_warmups(facts):
    found = facts["padding"]
    assert (
        found["rows_apart"]["rows_equal_eager"]
        and found["rows_apart_tail_of_nan"]["rows_equal_eager"]
    )
    assert found["rows_apart"]["sizes_tried"] == 16
    assert found["rows_mixed"]["wrong_sizes"] == [3, 5, 6, 7, *range(9, 16)]
    found = facts["warmups"]
    assert [one["warmups"] for one in found["tries"]] == [0, 2]
    none, two = found["tries"]
    assert none["succeeded"] or none["error"]
    assert two["succeeded"] and two["replay_equals_eager"]
    assert len(two["warmup_ms"]) == 2 and 0 < two["steady_replay_ms"] < two["warmup_ms"][0]
    assert found["fewest_warmups_that_work"] in (0, 2)


def test_memory_options(facts):
    assert facts["memory"]["defaults"]["memory_planning"] is False
    for found in facts["memory"]["cases"].values():
        for name, one in found["variants"].items():
            # off by default, and known to fail: that is a fact too
            if name == "memory_planning" and not one["ran"]:
                assert one["error"]
                assert found["memory_planning_lowers_the_peak"] is None
                continue
            assert one["ran"], (name, one)
            assert one["output_equals_eager"], name
            assert one["peak_bytes"] > 0, name
        assert isinstance(found["reorder_for_locality_lowers_the_peak"], bool)


def test_first_calls_and_seconds_of_recompiling(facts):
    found = facts["calls"]["modes"]
    assert list(found) == ["eager", "default", "reduce-overhead"]
    for name, one in found.items():
        assert one["ran"] and len(one["calls"]) == 10 and one["processes"] == 2, (name, one)
        assert one["calls"]["1"]["value"] > 1 and one["steady_ms"]["value"] > 0, name
    for name, again in (("small", True), ("large", False)):
        found = facts[name]
        assert found["compile_s"]["value"] > 0.1 and found["tree_bytes"]["value"] > 0
        assert ("again_s" in found) is ("warm_s" in found) is again
    assert facts["small"]["warm_s"] < facts["small"]["compile_s"]["low"]


def test_the_parts_of_a_call_and_what_a_wait_is_for(facts):
    found = facts["host_time"]
    for mode in ("default", "reduce-overhead"):
        assert found["guards"][mode] > 10 and len(found[mode]["parts_us"]) >= 5, found[
            "not_available"
        ]
    assert facts["waits"]["bs 4096"]["forward_runs_after"]["nonzero"] == 0
    for kinds in (value for name, value in facts["pools"].items() if name != "sizes"):
        assert kinds["shared"]["reserved_bytes"] <= kinds["private"]["reserved_bytes"]
    cycles = {
        name: level["cycles"]["value"]
        for name, level in facts["levels"].items()
        if "cycles" in level
    }
    # the counter also runs while other processes have the GPU, which hits the long chains
    assert cycles["L1"] == min(cycles[name] for name in ("L1", "L2", "memory"))


def test_without_triton(facts):
    found = facts["triton"]
    assert (
        found["cpu"]["compiles"]
        and found["cpu"]["kernels_in_cpp"]
        and not found["cpu"]["triton_is_found"]
    )
    assert found["cuda_with_triton"]["compiles"] and found["cuda_with_triton"]["kernels_in_triton"]
    assert found["cuda"]["triton_is_found"] is False
    assert found["cuda"]["compiles"] in (True, False)
    assert found["cuda"]["compiles"] or found["cuda"]["compile_error"]
