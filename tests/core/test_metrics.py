"""Quantities are declared once, by the fields of trials and results."""

import dataclasses

import pytest

from effbench.core.cell import Result, Trial
from effbench.core.metrics import METRICS, TRIAL_METRICS
from effbench.core.quantities import ratio_text
from effbench.store.schema import RESULT_COLUMNS


def names_of(record):
    return [field.name for field in dataclasses.fields(record)]


def test_a_result_is_a_row_of_the_view():
    assert set(names_of(Result)) - {"interpreter", "folder"} == set(RESULT_COLUMNS)


@pytest.mark.parametrize("metric", TRIAL_METRICS, ids=lambda metric: metric.name)
def test_a_quantity_has_its_type_and_an_explanation(metric):
    assert metric.help
    assert metric.kind in (float, int, bool, str)
    assert getattr(Trial("key", 0, None), metric.name) is None


@pytest.mark.parametrize(
    ("name", "value", "number", "text"),
    [
        ("latency_ms", 0.12345, "0.123", "0.123 ms"),
        ("speedup", 1.3, "1.30", "1.30×"),
        ("relative_memory", 1.54, "+54 %", "+54 %"),
        ("break_even_calls", 1234, "1,234", "1,234 calls"),
        ("peak_reserved_bytes", 1536, "1.50 KiB", "1.50 KiB"),
        ("gpu_idle_fraction", 0.25, "0.25", "0.25"),
        ("scaling_efficiency", 0.25, "0.250", "0.250"),  # with as many digits as its bounds
        ("latency_ms", None, "—", "—"),
        ("speedup", float("inf"), "∞", "∞"),
    ],
)
def test_a_number_without_its_unit(name, value, number, text):
    assert (METRICS[name].number(value), METRICS[name].format(value)) == (number, text)


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.4, 0.6, "0.500 (0.400–0.600)"),
        (4e-18, 3e16, "0.500 (interval over 1000×)"),
        (None, None, "0.500"),
    ],
)
def test_an_interval_that_tells_nothing_has_no_bounds(low, high, text):
    """Two rounds 30 times apart."""
    assert ratio_text(0.5, low, high) == text
