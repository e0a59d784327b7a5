"""Changes that somebody acknowledged."""

from __future__ import annotations

import math

import numpy as np
import pytest
from made_history import GPU, latencies, noisy

from effbench.comparison.events import event_id


class TestAcknowledged:
    def row(self, sweep_id, metric="latency_ms", place=GPU, cell="c"):
        return {"id": 7, "cell_key": cell, "hardware": place, "metric": metric, "sweep_id": sweep_id, "reason": "known"}

    @pytest.mark.parametrize(
        "sweep_id, held", [("s013", False), ("s014", True), ("s015", True), ("s016", True), ("s017", False)]
    )
    def test_holds_within_one_sweep(self, sweep_id, held):
        made = latencies(noisy(15) + noisy(15, 1.1, 1))
        (event,) = made.judge(acknowledged=[self.row(sweep_id)]).events
        assert (event.acknowledged == "known") is held
        assert event.alarms is not held
        # the id is that under which it was acknowledged
        assert event.id == event_id(event.series, sweep_id if held else "s015")

    def test_holds_wherever_noise_lets_the_change_be(self):
        """What a few more sweeps would move it to."""
        random = np.random.default_rng(1)
        values = list(np.exp(random.normal(0, 0.03, 40) + np.repeat([0, math.log(1.06)], 20)))
        made = latencies(values)
        (event,) = made.judge().events
        places = [int(one[1:]) for one in (event.earliest, event.after, event.latest)]
        assert places[0] <= places[1] <= places[2] and places[2] - places[0] >= 2
        for at in range(40):
            (event,) = made.judge(acknowledged=[self.row(f"s{at:03}")]).events
            assert (event.acknowledged is not None) is (places[0] - 1 <= at <= places[2] + 1), at

    def test_each_holds_for_one_change(self):
        """The nearest: the next change of the series alarms again, even close by."""
        made = latencies(noisy(10) + noisy(3, 1.1, 1) + noisy(10, 1.3, 2))
        second, first = made.judge(acknowledged=[self.row("s011")]).events
        assert (first.after, second.after) == ("s010", "s013")
        assert first.acknowledged == "known" and second.alarms
        second, first = made.judge(acknowledged=[self.row("s013")]).events
        assert second.acknowledged == "known" and first.alarms
        second, first = made.judge(acknowledged=[self.row("s010"), self.row("s014") | {"id": 8}]).events
        assert (first.acknowledgement, second.acknowledgement) == (7, 8)

    def test_of_several_the_nearest_one_is_it(self):
        made = latencies(noisy(15) + noisy(15, 1.1, 1))
        rows = [{**self.row(sweep_id), "id": number} for number, sweep_id in enumerate(("s016", "s015", "s014"))]
        (event,) = made.judge(acknowledged=rows).events
        assert event.acknowledgement == 1

    def test_counts_the_sweeps_of_the_series(self):
        values = [*noisy(10), *[None] * 10, *noisy(10, 1.1, 1)]
        (event,) = latencies(values).judge(acknowledged=[self.row("s009")]).events
        assert event.acknowledged == "known"

    @pytest.mark.parametrize("other", [{"metric": "period_ms"}, {"place": "other"}, {"cell": "other"}])
    def test_of_another_series(self, other):
        made = latencies(noisy(15) + noisy(15, 1.1, 1))
        (event,) = made.judge(acknowledged=[self.row("s015", **other)]).events
        assert event.acknowledged is None
