"""Where the time went between two sides: terms that add up, and the sentence."""

import math
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from made_sweeps import DEFAULT, EAGER, FAST, GRAPH, SLOW, steps
from test_analysis_explain_kernels import ADD, COPY, GELU, LARGE, SMALL, TEMPLATE, a_kernel

from effbench.analysis.cell_pairs import default_pairs
from effbench.analysis.explain import (
    ON_CPU,
    Breakdown,
    Explanation,
    NotTracedError,
    Part,
    difference_of,
    predicate_of,
    without_tracing,
)
from effbench.analysis.kernel_changes import ChangeKind, KernelChange
from effbench.analysis.kernel_classes import KernelClass
from effbench.core.trace import Trace
from effbench.store.store import Store

FLASH = a_kernel(
    "void pytorch_flash::flash_fwd_kernel<X<64, 128>>()", "aten::_flash_attention", 0.1
)
EFFICIENT = a_kernel("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(X)", FLASH.operator, 0.3)
SDPA = "aten::scaled_dot_product_attention"
MATH = [
    a_kernel("nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT", SDPA, 0.1),
    a_kernel("void (anonymous namespace)::softmax_warp_forward<float>()", SDPA, 0.2),
    a_kernel("nvjet_sm90_tst_8x64_64x16_2x1_v_bz_TNN", SDPA, 0.1),
]
NAMES = ("eager", "default")
#: All terms, in the order of a call.
ORDER = (Part.BEFORE, Part.GAPS, *KernelClass, Part.AFTER, Part.REST)


def traced(kernels, before=0.05, gap=0.005, host=None, device="cuda", delay=0.0, noise=1.0):
    """A trial whose kernels have this gap before them, traced with a delay of the gaps."""
    placed = [replace(kernel, gap_ms=gap) for kernel in kernels]
    placed[0] = replace(placed[0], gap_ms=0.0)
    latency = before + gap * (len(placed) - 1) + 0.01 + sum(kernel.added_ms for kernel in placed)
    each = delay / max(1, len(placed) - 1)
    slow = [placed[0], *(replace(kernel, gap_ms=gap + each) for kernel in placed[1:])]
    trace = Trace(
        device, 10, latency + delay, before, 0.01, 3 * len(placed), tuple(slow), host or {}
    )
    trial = SimpleNamespace(latency_ms=latency * noise, cold_s=None, extra={})
    return SimpleNamespace(trial=trial, trace=trace)


def trials(kernels, number=3, **facts):
    """Trials whose host time differs by 1 %."""
    before = facts.pop("before", 0.05)
    return [traced(kernels, before * (1 + 0.01 * index), **facts) for index in range(number)]


def largest(explanation):
    return max(explanation.terms, key=lambda term: abs(term.ms.value)).name


LAYER = [SMALL, ADD, GELU]
GRAPHED = {"graph launch": 0.01}
#: What was built -> both sides, the largest term, the cause.
BUILT = {
    "an extra copy": (
        trials(LAYER),
        trials([SMALL, COPY, ADD, GELU]),
        "copies and casts",
        "1 copy operation is new (Memcpy DtoD)",
    ),
    "a fusion prevented": (
        trials([TEMPLATE, SMALL] * 3),
        trials([SMALL, replace(GELU, added_ms=0.06), SMALL] * 3),
        "pointwise",
        "3 pointwise operations are no longer fused into matrix products",
    ),
    "a larger tile": (
        trials([SMALL, ADD] * 4),
        trials([LARGE, ADD] * 4),
        "matrix products",
        "4 matrix products are replaced (nvjet 256x128 tile instead of nvjet 64x32 tile)",
    ),
    "a slower attention backend": (
        trials([SMALL, FLASH, ADD]),
        trials([SMALL, EFFICIENT, ADD]),
        "attention",
        "1 attention operation is replaced (fmha 64x64 tile instead of flash_fwd_kernel)",
    ),
    "attention without a kernel of its own": (
        trials([SMALL, FLASH, ADD]),
        trials([SMALL, *MATH, ADD]),
        "attention",
        "2 attention operations are no longer fused",
    ),
    "a graph whose attention has no kernel of its own": (
        trials([SMALL, FLASH, ADD]),
        trials([replace(kernel, operator=None) for kernel in (SMALL, *MATH, ADD)], host=GRAPHED),
        "attention",
        "2 attention operations are no longer fused",
    ),
    "compiled attention without a kernel of its own": (
        trials([SMALL, FLASH, ADD]),
        trials([SMALL, *(replace(kernel, operator="aten::bmm") for kernel in MATH), ADD]),
        "attention",
        "2 attention operations are no longer fused",
    ),
    "a sleep before the first kernel": (
        trials(LAYER, before=0.05, host={"Python": 0.02}),
        trials(LAYER, before=1.05, host={"Python": 1.02}),
        "host before the first kernel",
        "the host takes longer before the first kernel (Python)",
    ),
    "a sleep between kernels": (
        trials(LAYER, gap=0.005, host={"Python": 0.02, "waiting for the GPU": 0.1}),
        trials(LAYER, gap=0.5, host={"Python": 1.02, "waiting for the GPU": 5.0}),
        "idle between kernels",
        "the GPU waits longer between kernels (Python)",
    ),
    "a lost graph": (
        trials([replace(kernel, operator=None) for kernel in LAYER * 5], gap=0.001, host=GRAPHED),
        trials(LAYER * 5, gap=0.012, host={"kernel launches": 0.05}),
        "idle between kernels",
        "the CUDA graph is gone, so the GPU waits for launches between kernels",
    ),
}


@pytest.mark.parametrize("built", BUILT)
def test_the_cause_of_what_was_built(built):
    first, second, term, cause = BUILT[built]
    explanation = Explanation.of(first, second, NAMES)
    assert largest(explanation) == term
    assert explanation.cause.startswith(f"{cause}: +")
    assert f"because {cause}" in explanation.sentence
    assert explanation.sentence.startswith("default takes ")
    assert "longer than eager" in explanation.sentence
    back = Explanation.of(second, first, NAMES)
    assert largest(back) == term
    assert "less than eager" in back.sentence


def test_sentences_read_aloud():
    def sentence(built):
        first, second, *_ = BUILT[built]
        return Explanation.of(first, second, NAMES).sentence

    assert sentence("an extra copy") == (
        "default takes 0.0550 ms longer than eager (0.2555 instead of 0.2005 ms): +0.0500 ms"
        " because 1 copy operation is new (Memcpy DtoD)."
    )
    first, second, *_ = BUILT["a lost graph"]
    assert Explanation.of(second, first, ("eager", "cuda-graph")).sentence == (
        "cuda-graph takes 0.154 ms less than eager (0.724 instead of 0.879 ms): -0.154 ms because"
        " the GPU no longer waits for launches between kernels."
    )


def test_a_difference_that_is_not_significant_has_no_cause():
    first = [traced(LAYER, before) for before in (0.05, 0.07, 0.06)]
    second = [traced(LAYER, before) for before in (0.06, 0.05, 0.071)]
    explanation = Explanation.of(first, second, NAMES)
    assert explanation.cause is None
    assert explanation.sentence == (
        "default takes 0.210 ms and eager 0.210 ms: the difference is not significant."
    )


def test_no_single_part_explains_a_difference_of_many_small_ones():
    first = [traced(LAYER)]
    kernels = [replace(kernel, added_ms=kernel.added_ms + 0.01) for kernel in LAYER]
    second = [traced([*kernels, FLASH], gap=0.012), traced(LAYER)][:1]
    second[0].trial.latency_ms = first[0].trial.latency_ms + 1.0
    explanation = Explanation.of(first, second, NAMES)
    assert explanation.cause is None
    assert "no single part explains it, +0.75 ms not explained" in explanation.sentence
    assert explanation.sentence.endswith("A single trial has no intervals.")


def test_a_certain_part_of_a_few_percent_is_no_cause():
    first = trials(LAYER)
    second = trials([*LAYER, ADD])
    for trial in second:
        trial.trial.latency_ms += 1.0
    explanation = Explanation.of(first, second, NAMES)
    assert explanation.cause is None
    assert ": no single part explains it, +0.92 ms not explained." in explanation.sentence


def test_a_part_that_reduces_the_difference_is_told():
    first = trials([SMALL, SMALL, COPY, ADD])
    second = trials([LARGE, LARGE, ADD])
    explanation = Explanation.of(first, second, NAMES)
    replaced = "2 matrix products are replaced (nvjet 256x128 tile instead of nvjet 64x32 tile)"
    assert explanation.sentence.endswith(
        f": +0.200 ms because {replaced}, -0.050 ms because 1 copy operation is gone (Memcpy DtoD)."
    )
    assert explanation.cause == f"{replaced}: +0.200 of +0.145 ms"


def test_single_trials_have_no_intervals_and_name_large_parts():
    first, second, term, cause = BUILT["a larger tile"]
    explanation = Explanation.of(first[:1], second, NAMES)
    assert all(term.ms.low is None for term in explanation.terms)
    assert largest(explanation) == term
    assert explanation.cause.startswith(cause)


def test_what_only_one_side_does_has_no_interval_for_a_single_trial():
    first, second, *_ = BUILT["a lost graph"]
    works = Explanation.of(first[:1], second, NAMES).host_changes
    assert {work.name for work in works} == {"graph launch", "kernel launches"}
    assert all(work.ms.low is None for work in works)


def test_terms_that_are_zero_on_both_sides_are_left_out():
    first, second, *_ = BUILT["an extra copy"]
    names = {term.name for term in Explanation.of(first, second, NAMES).terms}
    assert names - {Part.REST} == {
        Part.BEFORE,
        Part.GAPS,
        Part.AFTER,
        "matrix products",
        "pointwise",
        "copies and casts",
    }


KERNELS = [ADD, GELU, SMALL, LARGE, TEMPLATE, COPY, FLASH, *MATH]


def random_side(numbers, device):
    side = []
    for _ in range(numbers.randrange(1, 6)):
        kernels = numbers.choices(KERNELS, k=numbers.randrange(1, 30))
        side.append(
            traced(
                kernels,
                before=numbers.random(),
                gap=numbers.random() * 0.1,
                device=device,
                delay=numbers.choice([0.0, 0.3, 5.0]) * numbers.random(),
                noise=0.5 + numbers.random(),
            )
        )
    return side


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_terms_add_up_to_the_difference_of_the_latencies(device):
    numbers = random.Random(4)
    for _ in range(100):
        first, second = random_side(numbers, device), random_side(numbers, device)
        explanation = Explanation.of(first, second, NAMES)
        means = [
            sum(trial.trial.latency_ms for trial in side) / len(side) for side in (first, second)
        ]
        whole = means[1] - means[0]
        assert explanation.latency.ms.value == pytest.approx(whole, abs=1e-12)
        total = math.fsum(term.ms.value for term in explanation.terms)
        assert total == pytest.approx(whole, abs=1e-9)
        for side, mean in zip((explanation.first, explanation.second), means, strict=True):
            terms = {term.name: term.second_ms for term in side.terms}
            assert math.fsum(terms.values()) == pytest.approx(mean, abs=1e-9)
            order = [ON_CPU.get(name, name) if device == "cpu" else name for name in ORDER]
            assert list(terms) == [name for name in order if name in terms]
            explained = [ms for name, ms in terms.items() if name != Part.REST]
            assert min(explained) >= 0
        assert explanation.sentence


def test_the_delay_of_tracing_is_taken_off_the_gaps_of_a_gpu():
    (delayed,) = trials(LAYER, 1, gap=0.02, delay=0.03)
    trace = without_tracing(delayed.trace, delayed.trial.latency_ms)
    assert trace.gap_ms == pytest.approx(0.04)
    assert trace.busy_ms == delayed.trace.busy_ms
    (times,) = Breakdown.of([delayed]).times
    assert times[Part.REST] == pytest.approx(0.0)


def test_a_delay_longer_than_the_gaps_is_taken_off_the_other_times_of_the_host():
    (delayed,) = trials(LAYER, 1, gap=0.02)
    before_ms, after_ms = delayed.trace.before_ms, delayed.trace.after_ms
    delayed.trial.latency_ms -= 0.06 - 0.02 + 0.005
    (times,) = Breakdown.of([delayed]).times
    assert times[Part.GAPS] == 0.0
    assert times[Part.BEFORE] / times[Part.AFTER] == pytest.approx(before_ms / after_ms)
    assert times[Part.REST] == pytest.approx(0.0)


def test_kernels_that_take_longer_than_the_call_are_not_explained():
    (overlapping,) = trials(LAYER, 1)
    overlapping.trial.latency_ms = overlapping.trace.busy_ms - 0.05
    (times,) = Breakdown.of([overlapping]).times
    assert [times[part] for part in (Part.BEFORE, Part.GAPS, Part.AFTER)] == [0.0] * 3
    assert times[Part.REST] == pytest.approx(-0.05)


def test_on_the_cpu_operators_and_gaps_share_the_delay():
    kernels = [
        a_kernel("aten::addmm", "aten::addmm", 0.1),
        a_kernel("aten::relu", "aten::relu", 0.1),
    ]
    (trial,) = trials(kernels, 1, gap=0.1, device="cpu", delay=0.06)
    trace = without_tracing(trial.trace, trial.trial.latency_ms)  # 6 events: 0.01 ms each
    kernels_ms = [kernel.added_ms for kernel in trace.kernels]
    assert kernels_ms[0] / trace.gap_ms == pytest.approx(0.09 / 0.15)
    (times,) = Breakdown.of([trial]).times
    assert times[Part.REST] == pytest.approx(0.0)


@pytest.mark.parametrize("part", [Part.BEFORE, Part.GAPS, Part.AFTER])
def test_a_host_that_was_slower_in_timing_takes_longer_in_all_parts(part):
    (usual,) = trials(LAYER, 1)
    (slower,) = trials(LAYER, 1)
    host_ms = usual.trial.latency_ms - usual.trace.busy_ms
    slower.trial.latency_ms += host_ms
    (old,), (new,) = Breakdown.of([usual]).times, Breakdown.of([slower]).times
    assert new[part] == pytest.approx(2 * old[part])
    assert new[Part.REST] == pytest.approx(0.0)


def test_a_cpu_that_was_slower_in_timing_takes_longer_for_everything():
    (trial,) = trials([a_kernel("aten::addmm", "aten::addmm", 0.1)], 1, device="cpu")
    (usual,) = Breakdown.of([trial]).times
    trial.trial.latency_ms *= 1.5
    (slower,) = Breakdown.of([trial]).times
    for name, ms in usual.items():
        assert slower[name] == pytest.approx(1.5 * ms)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_host_is_at_most_twice_as_slow(device):
    (trial,) = trials(LAYER, 1, device=device)
    (usual,) = Breakdown.of([trial]).times
    trial.trial.latency_ms *= 10
    (slower,) = Breakdown.of([trial]).times
    assert slower[Part.BEFORE] == pytest.approx(2 * usual[Part.BEFORE])
    assert slower[Part.REST] > 0.5 * trial.trial.latency_ms


def test_python_on_the_cpu():
    kernels = [
        a_kernel("aten::addmm", "aten::addmm", 0.1),
        a_kernel("aten::relu", "aten::relu", 0.1),
    ]
    first = trials(kernels, device="cpu", gap=0.01)
    second = trials(kernels, device="cpu", gap=0.9)
    explanation = Explanation.of(first, second, NAMES)
    assert explanation.cause == "Python takes longer between operators: +0.890 of +0.890 ms"


def test_sides_without_traces_say_so():
    with_trace = trials(LAYER)
    damaged = [SimpleNamespace(trial=trial.trial, trace=None) for trial in with_trace]
    with pytest.raises(
        NotTracedError, match=r"^default was not traced: measured by an older version"
    ):
        Explanation.of(with_trace, damaged, NAMES)
    with_trace[1].trial.extra["no_trace"] = "its calls differ"
    with pytest.raises(NotTracedError, match=r"^default was not traced: its calls differ$"):
        Explanation.of(with_trace, damaged, NAMES)
    with_trace[0].trial.cold_s = 2.0
    with pytest.raises(NotTracedError, match=r"^default was not traced: effbench coldstart shows"):
        Explanation.of(with_trace, damaged, NAMES)
    of_failed = SimpleNamespace(latency_ms=None, extra={})
    failed = SimpleNamespace(trial=of_failed, trace=with_trace[0].trace)
    assert len(Breakdown.of([failed, *damaged, *with_trace]).traces) == len(with_trace)


def test_intervals_of_differences_are_welchs():
    from scipy.stats import ttest_ind

    numbers = random.Random(5)
    for _ in range(50):
        first = [numbers.gauss(1, 0.1) for _ in range(numbers.randrange(2, 6))]
        second = [numbers.gauss(-1, 0.4) for _ in range(numbers.randrange(2, 6))]
        expected = ttest_ind(second, first, equal_var=False).confidence_interval()
        interval = difference_of(first, second)
        assert [interval.low, interval.high] == pytest.approx([expected.low, expected.high])
    assert difference_of([1.0, 1.0], [3.0, 3.0]).high == 2.0


def pair_of(made, cells):
    sweep = made.sweep(cells)
    with Store.open(made.path) as store:
        return [(pair.first.mode, pair.second.mode) for pair in default_pairs(store.results(sweep))]


def test_the_default_pair_is_the_reference_and_the_best_mode(made):
    slowest = {"latency_ms": steps(2.0, 0.001)}
    assert pair_of(made, {EAGER: slowest, GRAPH: SLOW, DEFAULT: FAST}) == [("eager", "default")]
    assert pair_of(made, {EAGER: FAST, GRAPH: SLOW, DEFAULT: slowest}) == [("eager", "cuda-graph")]
    assert pair_of(made, {EAGER: FAST}) == []


@pytest.mark.parametrize(
    ("names", "predicate"),
    [
        (["fused loops", "fused loops"], "new"),
        (["fused loops", "copy_"], "new (fused loops, copy_)"),
        (["Memcpy DtoD"], "new (Memcpy DtoD)"),
    ],
)
def test_fused_loops_have_no_names_of_their_own(names, predicate):
    changes = [KernelChange(ChangeKind.NEW, KernelClass.FUSED_LOOPS, "", name) for name in names]
    assert predicate_of(changes) == predicate
