"""A clock that only the measured calls advance: what is timed takes exactly as long as a test
says."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest


class TurnedClock:
    """Stands in for `time.perf_counter` and `perf_counter_ns`.

    step: a callable whose n-th call takes `durations_s[n]` seconds, of whatever arguments.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, durations_s: Iterable[float] = ()) -> None:
        self.now = 0.0
        self.durations = iter(durations_s)
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(time, "perf_counter_ns", lambda: round(self.now * 1e9))

    def step(self, *args: Any, **kwargs: Any) -> None:
        self.calls.append((args, kwargs))
        self.now += next(self.durations)

    def taking(self, seconds: Callable[..., float]) -> Callable[..., None]:
        """A callable that takes as many seconds as `seconds` says of its arguments."""

        def step(*args: Any, **kwargs: Any) -> None:
            self.calls.append((args, kwargs))
            self.now += seconds(*args, **kwargs)

        return step
