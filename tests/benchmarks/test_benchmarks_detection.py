"""The replay of recorded noise: what it draws is what was recorded, and what it calls slower is what `screen` does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import detection_history as history
import detection_rules as rules
import detection_sweeps as sweeps
import noise_model
import numpy as np
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def templates():
    return noise_model.templates(noise_model.load()[1])


@pytest.fixture
def trials():
    """Two sweeps of one cell: sweep 1 is 10 % slower, with trials at ± 1 %."""
    level = {0: 1.0, 1: 1.1}
    return [
        {
            "db": "a", "sweep": sweep, "round": number, "cell": "x", "kind": "GPU-bound", "status": "ok", "foreign": 0,
            "kernels": 3, "peak_allocated_bytes": 7, "latencies_ms": [figure] * 60,
            **{name: figure for name in noise_model.FIGURES if (name, sweep, number) != ("energy_mj", 0, 1)},
        }
        for sweep in level
        for number in range(20)
        for figure in [level[sweep] * (1.01 if number % 2 else 0.99)]
    ]  # fmt: skip


def test_a_template_has_the_spread_and_the_shifts_of_its_recording(trials):
    (one,) = noise_model.templates(trials)
    within, between = one.spread("latency_ms")
    assert within == pytest.approx(0.01 * np.sqrt(20 / 19), rel=1e-3)
    # both sweeps lie 4.77 % off the middle; what 20 trials explain of that is next to nothing
    assert between == pytest.approx(np.log(1.1) / np.sqrt(2), rel=1e-2)
    assert one.kind == "GPU-bound" and one.constant == {"peak_allocated_bytes": 7, "kernels": 3}
    assert np.isnan(one.deviations[:, 3]).sum() == 1 and not np.isnan(one.shifts).any()


def test_shifts_that_few_trials_explain_are_none(trials):
    """Sweeps that differ by less than the standard error of their means have no shift of their own."""
    for trial in trials:
        for name in noise_model.FIGURES:
            if name in trial:
                trial[name] /= 1.099 if trial["sweep"] else 1.0
    (one,) = noise_model.templates(trials)
    assert np.abs(one.shifts[:, 0]).max() < 1e-9


def test_what_is_drawn_follows_the_template(templates):
    one = next(template for template in templates if template.kind == "launch-bound")
    shift = one.shift(RANDOM)
    drawn = [one.trials(RANDOM, 5, shift, sweeps.logs_of(0.05, ("latency_ms",))) for _ in range(400)]
    logs = np.log(np.concatenate([sample.figures for sample in drawn])) - one.levels - shift
    assert np.nanmean(logs[:, 0]) == pytest.approx(np.log(1.05), abs=0.004)
    assert np.nanmean(logs[:, 1]) == pytest.approx(0.0, abs=0.004)
    assert np.nanstd(logs[:, 0]) == pytest.approx(one.spread("latency_ms")[0], rel=0.1)
    assert {sample.values_ms.shape for sample in drawn} == {(5, 60)}
    wide = one.with_spread(0.2, ("latency_ms",))
    assert wide.spread("latency_ms")[0] == pytest.approx(0.2) and wide.spread("period_ms") == one.spread("period_ms")


def test_drift_moves_the_times_and_not_the_energy(templates):
    shifts = np.stack([templates[0].shift(RANDOM, drift=0.3) for _ in range(300)])
    assert shifts[:, :3].std(axis=0) == pytest.approx(0.3, rel=0.15)
    assert shifts[:, 3].std() < 0.05


def test_disturbed_trials_and_other_forms_are_left_out(tmp_path):
    path = tmp_path / "noise.jsonl"
    lines = [{"format": 1}, *({"status": s, "foreign": f} for s, f in (("ok", 0), ("ok", 1), ("noisy", 0)))]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert len(noise_model.load(path)[1]) == 1
    path.write_text(json.dumps({"format": 2}))
    with pytest.raises(ValueError, match="format 2, not 1"):
        noise_model.load(path)


def test_the_recording_names_no_machine():
    text = noise_model.RECORDING.read_text(encoding="utf-8")
    assert noise_model.RECORDING.stat().st_size < 1e6
    assert not re.search(r"GPU-[0-9a-f]{6}|/|pid|uuid|host_?name", text)


def test_one_cell_is_judged_as_if_all_were_screened_together(templates):
    cases = [
        sweeps.drawn_case(RANDOM, templates[i % len(templates)], 0.0, sweeps.logs_of(level, noise_model.TIMES))
        for i, level in enumerate([0.0] * 12 + [0.02, 0.03, 0.05, 0.1])
    ]
    for fenced in (False, True):
        together = rules.screened(cases, fenced)
        for index, case in enumerate(cases):
            own = {c.metric: c for c in together if c.key == str(index)}
            others = rules.p_values(together, but=str(index))
            alone = {c.metric: c for c in rules.screened_among(case, others, fenced)}
            assert {m: (c.verdict, c.p_value, c.limit) for m, c in alone.items()} == {
                m: (own[m].verdict, own[m].p_value, own[m].limit) for m in noise_model.FIGURES
            }
    assert rules.slower(rules.screened(cases))


def test_a_re_run_keeps_what_is_there_and_drops_what_is_not(templates):
    one = next(template for template in templates if template.kind == "GPU-bound")
    injected = sweeps.logs_of(0.1, noise_model.TIMES)
    found = rules.slower(rules.screened([sweeps.drawn_case(RANDOM, one, 0.0, injected)]))
    assert {change.metric for change in found} >= {"latency_ms", "period_ms"}
    assert rules.confirmed(found, *sweeps.rerun(RANDOM, one, 0.0, injected)) == found
    assert rules.confirmed(found, *sweeps.rerun(RANDOM, one, 0.0, 0.0)) == []
    # four pairs confirm nothing
    old, new = sweeps.rerun(RANDOM, one, 0.0, injected)
    assert rules.confirmed(found, old.first(4), new.first(4)) == []


def test_limits_are_those_of_the_shipped_configuration():
    import yaml

    shipped = yaml.safe_load((ROOT / "conf" / "check" / "default.yaml").read_text(encoding="utf-8"))
    assert shipped["floor"] == rules.LIMITS.floor and shipped["q"] == rules.LIMITS.q
    assert set(rules.LIMITS.metrics) <= set(shipped["metrics"])
    for metric in rules.LIMITS.metrics:
        given = shipped["limits"].get(metric, {})
        assert rules.LIMITS.of({}, metric).least == given.get("least", 0.0)
        assert rules.LIMITS.of({}, metric).floor == given.get("floor", shipped["floor"])


def test_change_points_are_told_by_where_they_lie():
    flat = np.zeros(60)
    tally = history.Tally()
    tally.add(history.Planted(flat, flat, (20, 30)), history.Reported([21, 30, 50], [(21, 30)]))
    tally.add(history.Planted(flat, flat, (20, 30)), history.Reported([23, 29], None))
    tally.add(history.Planted(flat, flat), history.Reported([7]))
    assert (tally.planted, tally.located, tally.false) == (4, 3, 2)
    assert (tally.stories, tally.undone) == (2, 1) and tally.errors == [1, 0, 3, 1]


def test_a_quick_look_prints_every_table(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "detection.py"), "--quick", "--jobs", "1", "--format", "markdown"],
        cwd=tmp_path, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert len(re.findall(r"^\| ---", done.stdout, re.M)) == 6
    for rule in rules.RULES:
        assert f"| {rule} |" in done.stdout
