"""Generated tokens on a GPU: the same logits in all modes, from one graph per step, with times that
fit together."""

from __future__ import annotations

import pytest

TINY = (
    "model=llama-1b-decode",
    "model.module.layers=4",
    "model.module.width=256",
    "model.module.heads=8",
    "model.module.kv_heads=2",
    "model.module.ffn=512",
    "model.module.vocab=1000",
    "model.module.max_seq=96",
    "model.module.context=1",
    "phase=generate",
    "generate.prompt=32",
    "bs=4",
)


@pytest.fixture(scope="module")
def trials(swept) -> list[dict]:
    return swept(*TINY, "generate.new_tokens=48", "mode=eager,default,reduce-overhead,cuda-graph")


def test_all_modes_have_the_same_logits(trials):
    assert [(trial["mode"], trial["reason"]) for trial in trials if trial["status"] != "ok"] == []
    assert len(trials) == 4
    for trial in trials:
        assert trial["rel_error"] < 2e-2, trial["mode"]
        assert not trial["recompiles"] and not trial["cudagraph_skips"], trial["mode"]


def test_figures_fit_together(trials):
    tokens = 48
    for trial in trials:
        mode = trial["mode"]
        assert 0 < trial["ttft_ms"] < trial["latency_ms"], mode
        assert 0 < trial["tpot_ms"] <= trial["tpot_p99_ms"] < trial["latency_ms"], mode
        assert trial["tokens_per_s"] == pytest.approx(4 * tokens * 1000 / trial["latency_ms"]), mode
        assert trial["period_ms"] is None, mode
    by_mode = {trial["mode"]: trial for trial in trials}
    # every step replays one graph; the prompt is eager in all modes
    for mode in ("reduce-overhead", "cuda-graph"):
        in_graphs = by_mode[mode]["extra"]["profile"]["kernels_in_graphs"]
        assert in_graphs > by_mode[mode]["kernels"] / 2, mode
