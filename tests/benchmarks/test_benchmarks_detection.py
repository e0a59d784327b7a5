"""The replay of recorded noise: it draws what was recorded, and its rules are those that they are
named after."""

import importlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # its scripts import each other by their plain names
detection = importlib.import_module("detection")


def test_the_recording_names_no_machine():
    text = detection.RECORDING.read_text(encoding="utf-8")
    assert len(text) < 1e6
    assert not re.search(r"GPU-[0-9a-f]{6}|/|pid|uuid|host_?name", text)
