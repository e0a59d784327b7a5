"""Quantized layers on a GPU: their errors, and modes that are checked against the quantized
module."""

import pytest

pytestmark = pytest.mark.extra("torchao")
#: Kind -> range of the error of three layers of random weights.
ERRORS = {
    "int8-weight-only": (1e-3, 0.03),
    "int4-weight-only": (0.03, 0.4),
    "float8-weight-only": (0.01, 0.15),
    "float8": (0.01, 0.2),
}


def test_every_kind_in_three_modes(swept):
    mlp = [
        "model=mlp",
        "model.module.width=1024",
        "model.module.depth=3",
        "bs=16",
        "dtype=bfloat16",
    ]
    trials = swept(
        *mlp, "mode=eager,default,cuda-graph", f"numerics.quantize=null,{','.join(ERRORS)}"
    )
    assert {(trial["status"], trial["reason"]) for trial in trials} == {("ok", None)}
    for trial in trials:
        kind = trial["cell"].numerics.get("quantize")
        least, most = ERRORS.get(kind, (0, 0))
        assert least <= (trial["quantization_error"] or 0) <= most, (
            kind,
            trial["quantization_error"],
        )
        assert "profile_failed" not in trial["extra"]
