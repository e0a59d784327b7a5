"""Modes and their settings through real sweeps on the CPU: status, facts and what is cold or warm."""

import pytest

from effbench.store import Store


@pytest.mark.slow
def test_compilations_torchscript_and_ahead_of_time(workshop):
    modes = "mode=eager,default,jit-trace,jit-script,aot-inductor"
    done = workshop.sweep("model=tiny", "bs=2", modes, "protocol.rounds=3", "protocol.compilations=2")
    assert done.code == 0, done.err
    found: dict[str, list[dict]] = {}
    with Store.open(workshop.db) as store:
        sweep = store.find_sweep("last")
        names = {cell.key: cell.mode_name for cell in store.planned(sweep.id)}
        for trial in store.trials(sweep.id):
            assert trial["status"] == "ok", trial["reason"]
            found.setdefault(names[trial["cell_key"]], []).append(trial)
        counted = {row["mode"]: row["compilations"] for row in store.results(sweep.id)}
    caches = {name: [trial["compile_cache"] for trial in of] for name, of in found.items()}
    assert caches == {
        "eager": [None] * 3,
        "default": ["cold", "cold", "warm"],
        "jit-trace": ["cold"] * 3,
        "jit-script": ["cold"] * 3,
        "aot-inductor": ["cold", "cold", "warm"],
    }
    for name, trials in found.items():
        numbers = [None] * 3 if name == "eager" else [0, 1, 0]
        assert [(trial["compilation"], trial["kernel_fingerprint"]) for trial in trials] == [(n, None) for n in numbers]
        assert counted[name] == (None if name == "eager" else 2)
    cold, _, warm = found["aot-inductor"]
    assert cold["compile_s"] > warm["compile_s"] > 0
    assert cold["extra"]["facts"]["package_bytes"] == warm["extra"]["facts"]["package_bytes"] > 10_000
    assert cold["graph_breaks"] is None, "Dynamo's counters say nothing of it"
    for name in ("jit-trace", "jit-script"):
        facts = found[name][0]["extra"]["facts"]
        assert any("deprecated" in said for said in facts["deprecations"])


def test_the_doctor_lists_the_options_of_this_torch(workshop):
    done = workshop.run("doctor", "--compile-options")
    assert done.code == 0, done.err
    assert "disable=False" in done.out
    assert "  max-autotune-no-cudagraphs: max_autotune=True" in done.out
    assert "\n  epilogue_fusion=True\n" in done.out
    both = workshop.run("doctor", "--compile-options", "--calibrate")
    assert both.code == 2
