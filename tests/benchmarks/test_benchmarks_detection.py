"""The recording of noise that `benchmarks/detection.py` replays."""

import importlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # its scripts import each other by their plain names
recorded_noise = importlib.import_module("recorded_noise")


def test_the_recording_names_no_machine():
    text = recorded_noise.RECORDING.read_text(encoding="utf-8")
    assert len(text) < 1e6
    assert not re.search(r"GPU-[0-9a-f]{6}|/|pid|uuid|host_?name", text)
