"""`effbench.results`: a column for each swept parameter, and frames without empty figures."""

import pytest
from made_sweeps import a_cell

import effbench
from effbench.core.metrics import RESULT_FIGURES
from effbench.store import RESULT_COLUMNS


def swept(made, *cells, figures=None):
    made.sweep({cell: figures or {} for cell in cells}, rounds=2)
    return effbench.results(str(made.path))


def wide(width, bs=8):
    cell = a_cell(bs=bs)
    cell.model["module"] = {"width": width, "_target_": "nets.Net"}
    return cell


def test_a_parameter_of_the_model_is_a_column(made):
    """Those that the view has are not repeated."""
    frame = swept(
        made,
        wide(256, bs=1),
        wide(512, bs=1),
        wide(256, bs=2),
    )
    assert tuple(frame.columns) == (*RESULT_COLUMNS, "model.module.width")
    assert frame["model.module.width"].tolist() == [256, 512, 256]


@pytest.mark.parametrize(
    ("values", "dtype", "column"),
    [
        ((1, 2), "Int64", [1, 2]),
        ((0.5, 1), "float64", [0.5, 1.0]),
        ((True, False), "boolean", [True, False]),
        (([1, 2], [3]), "string", ["[1, 2]", "[3]"]),
        ((2**80, 1), "float64", [2.0**80, 1.0]),
        ((1, "auto"), "string", ["1", "auto"]),
    ],
)
def test_dtypes_of_swept_parameters(made, values, dtype, column):
    width = swept(made, *map(wide, values))["model.module.width"]
    assert str(width.dtype) == dtype
    assert width.tolist() == column


def test_a_setting_of_a_mode_is_missing_for_other_modes(made):
    modes = [a_cell("default", settings={"fullgraph": full}) for full in (True, False)]
    fullgraph = swept(made, a_cell(), *modes)["mode.fullgraph"]
    assert str(fullgraph.dtype) == "boolean"
    assert fullgraph.isna().tolist() == [True, False, False]
    assert fullgraph.dropna().tolist() == [True, False]


def test_a_compact_frame_has_no_empty_figures(made):
    whole = swept(made, a_cell(), figures={"energy_mj": None, "period_ms": None})
    compact = effbench.results(str(made.path), compact=True)
    omitted = set(whole) - set(compact)
    assert {"energy_mj", "period_ms", "period_ci_low_ms"} <= omitted
    assert omitted <= RESULT_FIGURES.keys() - {"marked", "disturbance", "latency_ms"}
