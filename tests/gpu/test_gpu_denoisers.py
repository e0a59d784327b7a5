"""Denoisers and the choice of attention on a GPU."""

import pytest

#: A small Flux.
FLUX = {
    "num_layers": 2,
    "num_single_layers": 2,
    "num_attention_heads": 4,
    "joint_attention_dim": 64,
    "pooled_projection_dim": 64,
}


@pytest.mark.extra("diffusers")
def test_a_small_flux_in_three_modes(swept):
    config = ",".join(f"{name}:{value}" for name, value in FLUX.items())
    trials = swept(
        "model=diffusers",
        "model.arch=FluxTransformer2DModel",
        f"model.config={{{config}}}",
        "model.resolution=128",
        "model.seq=32",
        "mode=eager,default,regional",
        "dtype=bfloat16",
    )
    assert {(trial["status"], trial["reason"]) for trial in trials} == {("ok", None)}
    regions = [trial["extra"]["facts"].get("region") for trial in trials]
    assert "FluxTransformerBlock, FluxSingleTransformerBlock" in regions


def test_every_attention_of_gpt2(swept):
    trials = swept(
        "model=gpt2",
        "model.module.layers=2",
        "model.attention=eager,sdpa,flash,flex",
        "mode=eager,default",
        "dtype=bfloat16",
    )
    status = {}
    for trial in trials:
        status.setdefault(trial["cell"].model["attention"], set()).add(trial["status"])
    expected = {name: {"ok"} for name in ("eager", "sdpa", "flex")}
    assert status == expected | {"flash": {"unsupported"}}
