"""Duets in a schedule: who starts when, what becomes of one whose partner does not come, and when
there are enough."""

import os
from pathlib import Path

import pytest
from schedule_parts import (
    PROTOCOL,
    A,
    B,
    Server,
    Watcher,
    cell_runs,
    groups,
    ok,
)

from effbench.core import processes
from effbench.core.cell import Cell, Status, Trial
from effbench.core.meeting import ALONE, DUET, Partner, PartnerLostError, connect, listen
from effbench.core.message import DUET_PHASE, TaskEnd
from effbench.run.duets import Duets, StoppingRule, allows_duet

BOTH = (A, B)
IN_TURN = {**PROTOCOL, "duet": True}


class Pairwise(Watcher):
    """Both members of a duet run on a slot at once."""

    def started(self, slot, run, round): ...

    def ended(self, run, record): ...


class MeetingServer(Server):
    """Its trials meet each other, unless `play` says what else they do: it returns an outcome, or
    None to meet."""

    def __init__(self, play, log):
        super().__init__()
        self.play = play
        self.log = log

    def work(self, request, payload, env):
        outcome = self.play(payload)
        if outcome is None:
            outcome = meet(payload, request.begin, self.log)
        if not request.done.is_set():
            request.end(TaskEnd(**outcome))


def meet(payload, say_phase, log):
    """What a trial does: it waits for its partner, and says in its record what came of that."""
    duet = payload["duet"]
    if duet is None:
        log.append("alone")
        return ok(payload)
    log.append("leader" if duet["leads"] else "follower")
    facts = {"leads": duet["leads"]}
    try:
        if duet["leads"]:
            listener = listen(Path(duet["folder"]))
            say_phase(DUET_PHASE)
            connection, _ = listener.accept()
            listener.close()
        else:
            say_phase(DUET_PHASE)
            connection = connect(Path(duet["folder"]))
        partner = Partner(connection, 5.0)
        if not duet["leads"]:
            partner.send("hello")
            partner.wait_for_end()
        elif (hello := partner.receive())["op"] != "hello":
            raise PartnerLostError(hello["reason"])
    except (OSError, PartnerLostError) as error:
        facts[ALONE] = str(error)
    connection.close()
    say_phase("facts")
    return ok(payload, extra={DUET: facts})


@pytest.fixture
def duets(make_pairs):
    """An executor that has run trials; `play`: (interpreter, request) -> outcome."""

    def build(rounds, play=lambda interpreter, request: None, **options):
        log = []
        servers = {
            one: MeetingServer(lambda request, one=one: play(one, request), log) for one in BOTH
        }
        options = {"protocol": {**IN_TURN, "rounds": rounds}, "progress": Pairwise(), **options}
        made = make_pairs(groups(cell_runs(1, interpreters=BOTH), rounds), servers, **options)
        made.log = log
        return made

    return build


def test_members_meet_and_the_first_one_alternates(duets):
    made = duets(3)
    assert made.log == ["leader", "follower"] * 3, "the follower starts once the leader waits"
    assert made.ran_in == [A, B, B, A, B, A]
    leads = [record.extra[DUET] for record in made.recorded]
    assert leads == [{"leads": True}, {"leads": False}] * 3
    for old, new in zip(*made.sent.values(), strict=True):
        assert old["duet"]["folder"] == new["duet"]["folder"]
        assert not Path(old["duet"]["folder"]).exists(), "nothing is left behind"
    assert made.progress.retries == []


def test_the_follower_of_a_leader_that_ended_runs_alone(duets):
    made = duets(2, lambda interpreter, request: ok(request, "error") if interpreter == A else None)
    assert [record.status for record in made.recorded] == [Status.ERROR, Status.OK, Status.OK]
    assert [request["duet"] for request in made.sent[B]] == [None, None]


@pytest.mark.parametrize(("status", "phase"), [("oom", "build"), ("unsupported", "device")])
def test_without_room_for_both_they_run_one_after_the_other(duets, status, phase):
    def play(interpreter, request):
        return ok(request, status, phase=phase) if interpreter == B and request["duet"] else None

    made = duets(3, play)
    assert [record.status for record in made.recorded] == [Status.OK] * 6
    assert all(ALONE in record.extra[DUET] for record in made.recorded), "the leader is told"
    assert made.log == ["leader", *["alone"] * 6], "both run again"
    assert len(made.progress.retries) == 1


def test_trials_of_other_servers_of_the_sweep_are_no_foreign_processes(monkeypatch):
    sweep, other = 10, 20
    parents = {
        os.getppid(): sweep,
        11: sweep,
        12: 11,
        other: 1,
        21: other,
        22: 21,
    }
    table = {pid: (parent, 0) for pid, parent in parents.items()}
    monkeypatch.setattr(processes, "process_table", lambda: table)
    assert processes.siblings({11, 12, 21, 22, 99}) == {12}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"phase": "training"}, False),
        ({"phase": "coldstart"}, False),
        ({"stream": {"sizes": [1, 2]}}, False),
        ({"generate": {}}, False),
        ({"parallel": "tp2"}, False),
    ],
)
def test_which_cells_alternate(changed, expected):
    (run,) = cell_runs(1)
    assert allows_duet(Cell(**run.cell.params() | changed)) is expected


# --- when there are enough ---


def side(values, **more):
    """The trials of a side."""
    return [
        Trial("a", number, Status.OK, compilation=0, latency_ms=value, **more)
        for number, value in enumerate(values)
    ]


RULE = StoppingRule({"a": {"latency_ms": 0.02}})
FIRST = [1.0, 2.0, 1.5]
SLOWER = [1.05, 2.102, 1.578]


@pytest.mark.parametrize(
    ("after", "compilations", "expected"),
    [
        (side(FIRST), 1, True),
        (side(SLOWER), 1, True),
        (side(SLOWER), 2, False),
        (side([1.02, 2.041, 1.531]), 1, False),
        ([*side(SLOWER[:2]), *side(SLOWER, disturbance="busy")[2:]], 1, False),
    ],
    ids=["same", "slower", "compilations", "at the floor", "marked"],
)
def test_when_there_are_enough_duets(after, compilations, expected):
    assert RULE.is_settled(Duets(side(FIRST), after), compilations) is expected


@pytest.mark.parametrize(("is_gate", "expected"), [(True, True), (False, False)])
def test_a_gate_ends_once_a_slowdown_is_excluded(is_gate, expected):
    """Whether the cell became faster does not matter to it: the interval is 0.96 to 1.005."""
    rule = StoppingRule({"a": {"latency_ms": 0.02}}, is_gate=is_gate)
    duets = Duets(side(FIRST), side([0.975, 1.98, 1.463]))
    assert rule.is_settled(duets, compilations=1) is expected


def test_rounds_end_once_the_ratio_is_decided(duets):
    def play(interpreter, request):
        slower = 1.06 if interpreter == B else 1.0
        noise = 1 + 0.5 * (request["round"] % 3) + 0.001 * request["round"] * (interpreter == B)
        return ok(request, latency_ms=slower * noise, extra={DUET: {"leads": True}})

    key = cell_runs(1)[0].cell.key
    made = duets(20, play, duet_rule=StoppingRule({key: {"latency_ms": 0.02}}))
    assert len(made.recorded) == 2 * 3


def test_a_side_that_cannot_run_ends_the_rounds_of_the_other_one(duets):
    def play(interpreter, request):
        return ok(request, "unsupported") if interpreter == B else None

    assert len(duets(9, play, duet_rule=StoppingRule({})).recorded) == 2
