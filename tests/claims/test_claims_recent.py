"""The experiments piecewise, diffusion and options: what their claims say of rows."""

import pytest
from judging import judged, outcomes
from made_sweeps import a_result

from effbench.claims.definition import find
from effbench.claims.run import NO_CUDA

NAMES = ("piecewise", "diffusion", "options")
EXPERIMENTS = find([f"experiments/{name}.py" for name in NAMES])
CLAIMS = {claim.id for experiment in EXPERIMENTS for claim in experiment.claims}
GPT2, LLAMA, PREFILL = "gpt2", "llama-1b-decode", "llama-1b-prefill"
FLUX = "FluxTransformer2DModel"
DENOISERS = (
    "QwenImageTransformer2DModel",
    "LTXVideoTransformer3DModel",
    "WanTransformer3DModel",
)


def row(model, mode, time_ms, eager_ms, bs=1, module=None, attention=None, **facts):
    """A row whose time and speedup have intervals of ± 1 %; eager's speedup is exact."""
    speedup = eager_ms / time_ms
    margin = 0.01
    if mode == "eager":
        margin = 0
    of_model = {"name": model, "module": module or {}}
    if attention:
        of_model["attention"] = attention
    known = {
        "sweep_id": "s",
        "environment_id": "here",
        "model": model,
        "bs": bs,
        "mode": mode,
        "cell_key": f"{model}{bs}{mode}{module}{attention}",
        "params": {"model": of_model, "mode": {"name": mode}, "bs": bs},
        "is_baseline": mode == "eager",
        "latency_ms": time_ms,
        "latency_ci_low_ms": 0.99 * time_ms,
        "latency_ci_high_ms": 1.01 * time_ms,
        "speedup": speedup,
        "speedup_ci_low": (1 - margin) * speedup,
        "speedup_ci_high": (1 + margin) * speedup,
    }
    return a_result(**known | facts)


def graphs(model, times, bound="launch", **more):
    """Rows of one case. `times`: mode -> ms."""
    return [
        row(model, mode, time_ms, times["eager"], bound=bound, **more)
        for mode, time_ms in times.items()
    ]


#: The whole graph is 1.075 times as fast as the pieces.
FEW_TOKENS = {
    "eager": 2.0,
    "piecewise-graph": 1.075,
    "cuda-graph": 1.0,
    "default+piecewise": 0.86,
    "default+graph": 0.8,
}
MANY_TOKENS = {
    "eager": 10.0,
    "piecewise-graph": 9.8,
    "cuda-graph": 9.8,
    "default+piecewise": 9.0,
    "default+graph": 9.0,
}
DECODE = graphs(GPT2, FEW_TOKENS) + graphs(LLAMA, FEW_TOKENS)
SHORT = graphs(PREFILL, FEW_TOKENS, module={"seq": 32})
LONG = graphs(PREFILL, MANY_TOKENS, bound="gpu", module={"seq": 2048})


def blocks(model, times, seconds, **more):
    """Rows of eager, of a compiled network and of compiled blocks: ms and seconds of each."""
    modes = ("eager", "default", "regional")
    return [
        row(model, mode, time_ms, times[0], compile_cold_s=compile_s, **more)
        for mode, time_ms, compile_s in zip(modes, times, (None, *seconds), strict=True)
    ]


def denoisers(*times):
    """Rows of denoisers that take 100 ms in eager and these times compiled."""
    rows = []
    for name, time_ms in zip(DENOISERS, times, strict=True):
        rows += blocks(name, (100, time_ms, time_ms), (20, 5))[:2]
    return rows


def test_graphs_help_where_the_cpu_is_the_bottleneck():
    judgement = judged("P31", decode=DECODE, prefill=SHORT + LONG)
    assert judgement.verdict == "confirmed"
    assert judgement.value.value == pytest.approx(2)
    assert f"hardly, bound by the GPU: {PREFILL} seq=2048" in judgement.parts


def test_a_gain_where_the_gpu_is_the_bottleneck_contradicts():
    gaining = graphs(PREFILL, FEW_TOKENS, bound="gpu", module={"seq": 2048})
    assert judged("P31", decode=DECODE, prefill=SHORT + gaining).verdict == "depends"


@pytest.mark.parametrize(
    ("pieces_ms", "verdict"), [(1.075, "confirmed"), (1.3, "depends"), (0.9, "refuted")]
)
def test_a_whole_graph_is_seven_per_cent_faster_than_pieces(pieces_ms, verdict):
    times = FEW_TOKENS | {"piecewise-graph": pieces_ms, "default+piecewise": 0.8 * pieces_ms}
    judgement = judged("P32", decode=graphs(GPT2, times) + graphs(LLAMA, times))
    assert judgement.verdict == verdict
    assert judgement.value.value == pytest.approx(1 - 1 / pieces_ms)
    assert judgement.also[f"latency_ms, piecewise-graph {GPT2}"].value == pieces_ms


def test_pieces_help_short_prefill_most():
    judgement = judged("P33", prefill=SHORT + LONG)
    assert judgement.verdict == "confirmed"
    assert judgement.value.value == pytest.approx(2 / 1.075)


def test_pieces_that_slow_down_long_prefill():
    slow = graphs(PREFILL, MANY_TOKENS | {"piecewise-graph": 11.0}, module={"seq": 2048})
    found = outcomes(judged("P33", prefill=SHORT + slow))
    assert found[False] == ["faster with 2048 tokens"]


@pytest.mark.parametrize(
    ("blocks_s", "blocks_ms", "verdict"),
    [(7, 65, "confirmed"), (10, 65, "depends"), (10, 80, "refuted")],
)
def test_blocks_compile_in_less_time(blocks_s, blocks_ms, verdict):
    flux = blocks(FLUX, (100, 65, blocks_ms), (63, blocks_s))
    judgement = judged("P35", flux=flux)
    assert judgement.verdict == verdict
    assert judgement.value.value == pytest.approx(63 / blocks_s)


@pytest.mark.parametrize(
    ("compiled_ms", "verdict"), [(67, "confirmed"), (78, "refuted"), (71.4, "undecided")]
)
def test_the_speedup_of_flux(compiled_ms, verdict):
    flux = blocks(FLUX, (100, compiled_ms, compiled_ms), (63, 7))
    assert judged("P36", flux=flux).verdict == verdict


@pytest.mark.parametrize(
    ("times", "verdict"),
    [((120, 130, 140), "depends"), ((80, 70, 60), "refuted")],
)
def test_denoisers_that_compilation_slows_down(times, verdict):
    flux = blocks(FLUX, (100, 67, 67), (63, 7))
    judgement = judged("P37", flux=flux, denoisers=denoisers(*times))
    assert judgement.verdict == verdict
    assert outcomes(judgement)[False][0] == FLUX


@pytest.mark.parametrize(("flex_ms", "verdict"), [(8.0, "confirmed"), (11.0, "refuted")])
def test_flex_attention_against_flash_attention(flex_ms, verdict):
    times = {"sdpa": 9.0, "flash": 10.0, "flex": flex_ms}
    rows = [
        row("attention", "default", time_ms, 10, attention=name) for name, time_ms in times.items()
    ]
    judgement = judged("P38", attention=rows)
    assert judgement.verdict == verdict
    assert judgement.value.value == pytest.approx(10 / flex_ms)


def test_blocks_of_a_language_model():
    one = blocks(PREFILL, (18, 6.3, 9.7), (10.7, 2.5))
    four = blocks(PREFILL, (18, 10, 10), (10.2, 2.6), bs=4)
    assert judged("P39", blocks=one + four).verdict == "confirmed"


def test_blocks_that_cost_speed_with_four_prompts():
    one = blocks(PREFILL, (18, 6.3, 9.7), (10.7, 2.5))
    four = blocks(PREFILL, (18, 10, 11), (10.2, 2.6), bs=4)
    assert outcomes(judged("P39", blocks=one + four))[False] == ["as fast, bs=4"]


def with_option(option, time_ms, decode_ms, kernels=100):
    """Sweeps of a network each that takes 1 ms and 100 kernels without an option, and this time
    with it; another one in decoding."""
    sweeps = {}
    for name in ("torchvision", "timm", "encode", "logits", "decode"):
        taken_ms = decode_ms if name == "decode" else time_ms
        sweeps[name] = [
            row(name, "default", 1.0, 1.0, kernels=100, is_baseline=True),
            row(name, option, taken_ms, 1.0, kernels=kernels),
        ]
    return sweeps


@pytest.mark.parametrize(
    ("times", "kernels", "verdict"),
    [((1.0, 1.0), 86, "confirmed"), ((1.0, 1.0), 99, "depends"), ((1.1, 1.1), 99, "refuted")],
)
def test_combined_kernels(times, kernels, verdict):
    judgement = judged("P28", **with_option("combo_kernels", *times, kernels=kernels))
    assert judgement.verdict == verdict
    fewer = judgement.also["decode: kernels without the option ÷ with it"]
    assert fewer.value == pytest.approx(100 / kernels)


@pytest.mark.parametrize(
    ("times", "verdict"),
    [((0.9, 0.9), "confirmed"), ((0.9, 1.1), "depends"), ((1.1, 1.1), "refuted")],
)
def test_coordinate_descent_tuning(times, verdict):
    sweeps = with_option("coordinate_descent_tuning", *times)
    judgement = judged("P29", **sweeps)
    assert judgement.verdict == verdict
    assert judgement.also["decode"].value == pytest.approx(1 / times[1])


@pytest.mark.parametrize(
    ("times", "verdict"), [((1.4, 1.4), "confirmed"), ((1.4, 1.1), "depends"), ((1, 1), "refuted")]
)
def test_results_that_do_not_depend_on_the_batch(times, verdict):
    assert judged("P30", **with_option("batch_invariant", *times)).verdict == verdict


@pytest.mark.parametrize("claim", ["P34", "S20"])
def test_what_another_release_decides_is_not_measurable(claim):
    assert judged(claim).verdict == "not measurable here"


@pytest.mark.parametrize("claim", sorted(CLAIMS - {"P34", "S20"}))
def test_claims_need_a_gpu(claim):
    judgement = judged(claim, gpus=0)
    assert (judgement.verdict, judgement.reason) == ("not measurable here", NO_CUDA)
