"""The shipped predictions are what their script makes of the reference results."""

import importlib
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from effbench.analysis.predict import shipped

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
predict = importlib.import_module("predict")


@pytest.fixture(scope="module")
def rows():
    return predict.rows_of(predict.DATABASES)


@pytest.mark.slow
def test_the_shipped_fit_is_that_of_the_reference_results(rows):
    stored, fitted = map(msgspec.to_builtins, (shipped(), predict.fit_all(rows)))
    assert {name: stored[name] for name in ("gpus", "dtype")} == {
        name: fitted[name] for name in ("gpus", "dtype")
    }
    assert [*stored["modes"]] == [*fitted["modes"]]
    for mode, fit in fitted["modes"].items():
        for name, value in fit.items():
            assert stored["modes"][mode][name] == pytest.approx(value, rel=1e-3, abs=1e-6), name


@pytest.mark.slow
def test_each_mode_is_predicted_better_than_by_its_median(rows):
    for mode in shipped().modes:
        of_mode = [row for row in rows if row.result.mode == mode]
        error = np.median([guess.error for guess in predict.left_out(of_mode)])
        assert error <= predict.LARGEST_ERROR
        assert error < np.median([guess.error for guess in predict.by_median(of_mode)])


def test_least_squares_of_relative_deviations():
    assert predict.solve([[1, 1, 1], [1, 2, 4]], [3, 5, 9]) == pytest.approx([1, 2])
