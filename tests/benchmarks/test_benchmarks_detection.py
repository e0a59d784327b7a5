"""The replay of recorded noise: it draws what was recorded, and its rules are those that they are
named after."""

import importlib
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # its scripts import each other by their plain names
detection = importlib.import_module("detection")
RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def templates():
    return detection.templates_of(detection.load())


def test_the_recording_names_no_machine():
    text = detection.RECORDING.read_text(encoding="utf-8")
    assert len(text) < 1e6
    assert not re.search(r"GPU-[0-9a-f]{6}|/|pid|uuid|host_?name", text)


def test_slowed_cells_are_flagged_and_confirmed(templates):
    one = next(template for template in templates if template.kind == "GPU-bound")
    injected = np.full(len(detection.FIGURES), math.log(1.1))
    found = detection.slower(detection.screened([detection.case_of(RANDOM, one, 0.0, injected)]))[0]
    assert {change.metric for change in found} >= {"latency_ms", "period_ms"}
    shift = one.shift(RANDOM)
    old, new, same = (one.trials(RANDOM, shift, change, 9) for change in (0.0, injected, 0.0))
    again = {0: detection.Case(one.kind, old, new, {}), 1: detection.Case(one.kind, old, same, {})}
    flagged = {index: [replace(change, key=str(index)) for change in found] for index in again}
    assert detection.confirmed(flagged, again) == {0}
