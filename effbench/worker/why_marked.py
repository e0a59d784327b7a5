"""Why a figure is marked: the possible reasons for each kind of figure, in order of precedence.

`of_times`: the times of a trial that was timed alone. `of_speedup`: the speedup of pairs.
`of_duet`: the times of a member of a duet. `of_cold_start`: the times of fresh processes. Each
returns the first reason that applies, or None.

The parts of a trial supply the facts: `TimingFigure` has too few undisturbed samples
(`is_marked`), or several speeds (`varies`); `GpuWatch` tells what disturbed the GPU, and
`HostFacts` how busy the host was.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from effbench.core.disturbances import Disturbance, DisturbanceKind, busy_host
from effbench.core.printable import count
from effbench.core.quantities import percent, significant
from effbench.measure.host import ANYTHING, CoreUse, HostFacts
from effbench.measure.rules import Rules
from effbench.measure.samples import TimingFigure
from effbench.measure.timing import HOST_BOUND
from effbench.measure.watch import GpuWatch
from effbench.worker.step_times import StepTimes

#: Fraction of the cores that other processes may use while the CPU is timed. Beyond it, undisturbed
#: batches are slow, too, because virtual cores share physical ones.
CROWDED = 0.5
#: The same fraction if the cell has a single trial, which no other process can contradict, or short
#: calls.
CROWDED_IF_SENSITIVE = 0.15
#: Milliseconds below which calls are short: they have two speeds on a virtual machine, up to 20 %
#: apart, and other processes move them from one to the other.
SHORT_MS = 0.3
#: A single trial is marked if the fixed work took this many times longer in slower moments than in
#: the quietest ones. Its two levels on an idle virtual machine are 1.2 to 1.9 times apart.
UNEVEN = 3.0
#: Fraction of the cores' time that may be stolen. At 30 % the median of two threads' work is about
#: right, at 35 % it is a third too long, and at 50 % ten times.
TAKEN = 0.1
#: Fraction of a cold start for which its main thread may wait for a core. On an idle machine it
#: waits for less than 1 %, and the first answer scatters by 15 % between processes anyway.
STARTED_LATE = 0.1
#: Fewer samples have no interval of their median.
FEWEST_OF_ONE = 6
#: Maximum ratio of enqueue time to period. On an undisturbed host it is at most 1.2.
ENQUEUE_PERIODS = 1.5
#: Maximum ratio of period to latency if the host is the bottleneck, and not the GPU's clocks.
PERIOD_LATENCIES = 1.2


@dataclass(frozen=True)
class Evidence:
    """What is known about the times of a trial that was timed alone.

    `calls`: the number of timed ones. `has_short_calls`: they take less than `SHORT_MS`.
    `has_varied_calls`: they differ by themselves.
    """

    times: StepTimes
    calls: int
    has_short_calls: bool
    has_varied_calls: bool
    rules: Rules
    gpu: GpuWatch

    def busy_cores(self) -> Disturbance | None:
        return busy_cores(self.times.host, self.rules, self.has_short_calls)

    def too_few_calls(self) -> Disturbance | None:
        return too_few_of_one(self.calls, count(self.calls, "call"), self.rules)


def of_times(evidence: Evidence) -> Disturbance | None:
    """Return why the times of a trial that was timed alone are marked, or None."""
    times, gpu = evidence.times, evidence.gpu
    reasons = [gpu.disturbance]
    if times.is_marked:
        reasons.append(too_few_undisturbed(times.host, gpu))
    if not times.ignores_host:
        reasons.append(evidence.busy_cores())
        # the medians of varied calls may come from calls of different sizes
        if not evidence.has_varied_calls:
            for name, figure in times.figures.items():
                reasons.append(several_speeds(figure, f"the median of the {name}", " ms"))
        reasons.append(evidence.too_few_calls())
    if not evidence.has_varied_calls:
        reasons.append(contradiction(times))
    return first(reasons)


def has_doubtful_samples(evidence: Evidence) -> bool:
    """Return whether even the undisturbed samples that give the times may be wrong: others used the
    CPU, or there are few of them. Then the true median may be as low as the fastest one."""
    if evidence.times.is_marked or evidence.times.ignores_host:
        return False
    return first([evidence.busy_cores(), evidence.too_few_calls()]) is not None


def of_speedup(
    figure: TimingFigure,
    pairs: int,
    rules: Rules,
    gpu: Disturbance | None,
    host: HostFacts | None,
) -> Disturbance | None:
    """Return why the speedup of so many pairs is marked, or None. `figure`: their ratio; `gpu`:
    what disturbed the GPU meanwhile."""
    reasons = [gpu]
    if host is not None:
        if figure.is_marked:
            reasons.append(busy_for(host))
        # pairs cure no other use of the cores: threads that wait for each other suffer most
        reasons.append(stolen_time(host))
    reasons.append(too_few_of_one(pairs, f"{count(pairs, 'pair')} of calls", rules))
    reasons.append(several_speeds(figure, "the speedup of pairs"))
    return first(reasons)


def of_duet(
    times: StepTimes,
    ratios: Iterable[TimingFigure],
    rules: Rules,
    gpu: Disturbance | None,
) -> Disturbance | None:
    """Return why the times of a member of a duet are marked, or None. `ratios`: of both members'
    times, for each timer; `gpu`: what disturbed the GPU."""
    reasons = [gpu, busy_cores(times.host, rules)]
    for ratio in ratios:
        if times.host is not None and ratio.is_marked:
            reasons.append(busy_for(times.host))
        reasons.append(several_speeds(ratio, "the ratio of the two sides"))
    reasons.append(contradiction(times))
    return first(reasons)


def of_cold_start(
    use: CoreUse, waited_fraction: float, rules: Rules, on_cuda: bool
) -> Disturbance | None:
    """Return why the times of fresh processes are marked, or None. `use`: of the cores, until the
    processes have ended; `waited_fraction`: of the cold start, for which the main thread waited for
    a core because other processes ran there.

    Fixed work in the process that waits for the answer tells nothing: it wakes up an idle core, so
    that it is slower on a quiet machine than on a busy one.
    """
    if rules.tolerance >= ANYTHING:
        return None
    reasons = [taken_by_others(use)]
    if not on_cuda:
        # they may leave the start a core of its own, but not the threads of later calls
        reasons.append(crowded(use, CROWDED_IF_SENSITIVE))
    if waited_fraction > STARTED_LATE:
        waited = percent(waited_fraction)
        reasons.append(busy_host(f": the process waited for a core for {waited} of its start"))
    return first(reasons)


def first(reasons: Iterable[Disturbance | None]) -> Disturbance | None:
    return next(filter(None, reasons), None)


# --- the reasons


def too_few_undisturbed(host: HostFacts | None, gpu: GpuWatch) -> Disturbance:
    """Return what disturbed most samples of a timer."""
    if host is None or (gpu.discarded and not host.disturbed_fraction):
        return gpu.discarded[-1]
    return busy_for(host)


def busy_for(host: HostFacts) -> Disturbance:
    """Return for how much of the timing the host was busy: too few samples are undisturbed."""
    return busy_host(f" for {percent(host.disturbed_fraction or 0.0)} of the timing")


def busy_cores(
    host: HostFacts | None, rules: Rules, has_short_calls: bool = False
) -> Disturbance | None:
    """Return why undisturbed batches on the CPU are slow, too: others used the cores, or their
    speed changed."""
    if host is None or not host.all_cores_matter:
        return None
    is_single = rules.rounds == 1
    most_others = CROWDED
    if is_single or has_short_calls:
        most_others = CROWDED_IF_SENSITIVE
    stolen = stolen_time(host)
    others = crowded(host, most_others)
    if stolen is not None or others is not None:
        return stolen or others
    if is_single and host.high_ms is not None and host.high_ms > UNEVEN * host.low_ms:
        return busy_host(f": its speed changed by {host.high_ms / host.low_ms:.1f} ×")
    return None


def crowded(use: HostFacts | CoreUse, most: float) -> Disturbance | None:
    """Return that other processes used more than this fraction of the cores."""
    if use.others_fraction <= most:
        return None
    return busy_host(f": other processes used {percent(use.others_fraction)} of the cores")


def stolen_time(host: HostFacts) -> Disturbance | None:
    """Return that other virtual machines took too much of the cores' time, if it matters."""
    if not host.all_cores_matter:
        return None
    return taken_by_others(host)


def taken_by_others(use: HostFacts | CoreUse) -> Disturbance | None:
    """Return that other virtual machines took too much of the cores' time."""
    if use.stolen_fraction <= TAKEN:
        return None
    stolen = percent(use.stolen_fraction)
    return busy_host(f": other virtual machines took {stolen} of the cores' time")


def several_speeds(figure: TimingFigure, what: str, unit: str = "") -> Disturbance | None:
    """Return that undisturbed samples of `what` have several speeds. Not every hypervisor tells how
    much of the CPU other virtual machines take."""
    if not figure.varies:
        return None
    low = significant(figure.median.low, 3)
    high = significant(figure.median.high, 3)
    return Disturbance(
        DisturbanceKind.UNSTEADY, f"unsteady: {what} is anywhere from {low} to {high}{unit}"
    )


def too_few_of_one(number: int, what: str, rules: Rules) -> Disturbance | None:
    """Return that so few samples, which are `what`, give a figure that no other trial of the cell
    supports."""
    if rules.rounds > 1 or number >= min(FEWEST_OF_ONE, rules.max_samples):
        return None
    return Disturbance(DisturbanceKind.TOO_FEW, f"only {what} could be timed")


def contradiction(times: StepTimes) -> Disturbance | None:
    """Return that the host was busy while one of the two timers ran. Undisturbed, enqueueing a call
    takes hardly longer than its period, because the host has to enqueue back-to-back calls as
    well."""
    period_ms = times.period_ms
    if period_ms is None:
        return None
    latency_ms, enqueue_ms = times.latency_ms, times.enqueue_ms
    if enqueue_ms > ENQUEUE_PERIODS * period_ms:
        text = (
            f"latency timing: enqueueing a call took {enqueue_ms:.3g} ms, but a whole back-to-back"
            f" call only {period_ms:.3g} ms"
        )
    elif period_ms > PERIOD_LATENCIES * latency_ms and enqueue_ms > HOST_BOUND * latency_ms:
        text = (
            f"period timing: a back-to-back call took {period_ms:.3g} ms, but a synchronised one"
            f" only {latency_ms:.3g} ms"
        )
    else:
        return None
    return Disturbance(DisturbanceKind.HOST, f"the host was busy during {text}")
