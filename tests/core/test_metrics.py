"""Quantities are declared once, by the fields of trials and results."""

import dataclasses

import pytest

from effbench.core.cell import Result, Trial
from effbench.core.metrics import INTERVALS, METRICS, RESULT_METRICS, TRIAL_METRICS
from effbench.store.schema import RESULT_COLUMNS


def names_of(record):
    return [field.name for field in dataclasses.fields(record)]


def test_a_result_is_a_row_of_the_view():
    assert set(names_of(Result)) - {"interpreter", "folder"} == set(RESULT_COLUMNS)


def test_every_metric_of_a_trial_is_one_of_results():
    titled = [metric.name for metric in TRIAL_METRICS if metric.title]
    assert set(titled) <= set(METRICS)
    assert set(titled) <= set(names_of(Result))


def test_a_result_has_the_bounds_of_its_metrics():
    columns = {bound for interval in INTERVALS.values() for bound in interval}
    assert columns <= set(names_of(Result)) - {metric.name for metric in RESULT_METRICS}


@pytest.mark.parametrize("metric", TRIAL_METRICS, ids=lambda metric: metric.name)
def test_a_quantity_has_its_type_and_an_explanation(metric):
    assert metric.help
    assert metric.kind in (float, int, bool, str)
    assert getattr(Trial("key", 0, None), metric.name) is None
