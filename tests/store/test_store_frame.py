"""`effbench.results`: a column for each swept parameter, and frames without empty figures."""

import pytest
from made_sweeps import a_cell

import effbench
from effbench.core.metrics import RESULT_FIGURES
from effbench.store import RESULT_COLUMNS


def swept(made, cells, figures=None):
    made.sweep({cell: figures or {} for cell in cells}, rounds=2)
    return effbench.results(str(made.path))


def wide(width, mode="eager", **settings):
    cell = a_cell(mode, settings=settings)
    cell.model["module"] = {"width": width, "_target_": "nets.Net"}
    return cell


def test_a_parameter_of_the_model_is_a_column_with_the_dtype_of_its_values(made):
    frame = swept(
        made, [wide(width, mode) for width in (256, 512) for mode in ("eager", "default")]
    )
    assert tuple(frame.columns) == (*RESULT_COLUMNS, "model.module.width")
    assert frame["model.module.width"].tolist() == [256, 256, 512, 512]
    assert str(frame["model.module.width"].dtype) == "Int64"


@pytest.mark.parametrize(
    ("values", "dtype", "column"),
    [
        ((0.5, 1), "float64", [0.5, 1.0]),
        ((True, False), "boolean", [True, False]),
        (([1, 2], [3]), "string", ["[1, 2]", "[3]"]),
        ((2**80, 1), "float64", [2.0**80, 1.0]),
        ((1, "auto"), "string", ["1", "auto"]),
    ],
)
def test_dtypes_of_swept_parameters(made, values, dtype, column):
    frame = swept(made, [wide(value) for value in values])
    assert str(frame["model.module.width"].dtype) == dtype
    assert frame["model.module.width"].tolist() == column


def test_a_setting_of_a_mode_is_missing_for_other_modes(made):
    frame = swept(
        made,
        [a_cell(), *(a_cell("default", settings={"fullgraph": full}) for full in (True, False))],
    )
    assert str(frame["mode.fullgraph"].dtype) == "boolean"
    assert frame["mode.fullgraph"].isna().tolist() == [True, False, False]
    assert frame["mode.fullgraph"].dropna().tolist() == [True, False]


def test_columns_of_the_view_are_not_repeated(made):
    cells = [a_cell(bs=bs, dtype=dtype) for bs in (1, 8) for dtype in ("float32", "bfloat16")]
    assert tuple(swept(made, cells).columns) == RESULT_COLUMNS


def test_a_compact_frame_has_no_empty_figures(made):
    figures = {"energy_mj": None, "period_ms": None}
    whole = swept(made, [a_cell(), a_cell("default")], figures=figures)
    compact = effbench.results(str(made.path), compact=True)
    omitted = set(whole) - set(compact)
    assert {"energy_mj", "period_ms", "period_ci_low_ms"} <= omitted
    assert omitted <= RESULT_FIGURES.keys() - {"marked", "disturbance"}
    assert "latency_ms" in compact
