"""Does it matter which fork server a trial comes from?

    python benchmarks/servers.py [--servers 8] [--rounds 4]

Starts several fork servers at once and lets each of them run trials of the same cell (`tiny`, bs 64, eager), in random
order within each round, so that the machine's drift meets all alike. Prints how far trials of one server spread, how
far servers do beyond that, and the probability of such a difference by chance (one-way analysis of variance on
logarithms).
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import tempfile
from pathlib import Path

import tables
from scipy.stats import f as f_distribution

import effbench
from effbench.message import TrialRequest
from effbench.store import Store
from effbench.sweep.client import ForkServer

METRICS = ("latency_ms", "period_ms", "enqueue_ms")


def request(more: list[str]) -> dict:
    """That of a trial as a sweep would send it, by way of a sweep of one trial."""
    with tempfile.TemporaryDirectory() as folder:
        db = str(Path(folder) / "look.db")
        look = effbench.sweep(["model=tiny", "bs=64", "mode=eager", "protocol.rounds=1", f"db={db}", *more])
        with Store.open(db) as store:
            sweep = store.find_sweep(look.id)
            (cell,) = store.planned(look.id)
            (trial,) = store.trials(look.id)
    return TrialRequest(
        cell.params(), sweep.protocol, gpu_index=trial["gpu_index"], gpu_uuid=trial["gpu_uuid"]
    ).to_json()


def analyse(groups: list[list[float]]) -> tuple[float, float, float]:
    """SD within a group, SD between groups beyond that, and the p-value of no difference."""
    each, count = len(groups[0]), len(groups)
    within = statistics.fmean(statistics.variance(group) for group in groups)
    between = statistics.variance([statistics.fmean(group) for group in groups])
    beyond = max(0.0, between - within / each)
    p = float(f_distribution.sf(each * between / within, count - 1, count * (each - 1)))
    return math.sqrt(within), math.sqrt(beyond), p


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=4, help="trials of each (default: %(default)s)")
    args, more = parser.parse_known_args()
    payload = request(more)
    servers = [ForkServer() for _ in range(args.servers)]
    order = random.Random(0)
    found: dict[str, list[list[float]]] = {metric: [[] for _ in servers] for metric in METRICS}
    try:
        for server in servers:
            server.wait_ready()
        for _ in range(args.rounds):
            for index in order.sample(range(len(servers)), len(servers)):
                trial = servers[index].call("trial", payload, 300.0)
                for metric in METRICS:
                    if trial[metric] is not None:
                        found[metric][index].append(math.log(trial[metric]))
    finally:
        for server in servers:
            server.close()
    rows = []
    for metric, groups in found.items():
        if all(len(group) == args.rounds for group in groups):
            within, beyond, p = analyse(groups)
            rows.append([metric, f"{within:.2%}", f"{beyond:.2%}", f"{p:.3f}"])
    print(tables.render(["metric", "SD within a server", "SD between servers", "p"], rows))


if __name__ == "__main__":
    main()
