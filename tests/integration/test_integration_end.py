"""The end of a sweep names its database without the password."""

from contextlib import nullcontext
from types import SimpleNamespace

from effbench.commands import show
from effbench.sweeping.run import Outcome

URL = "postgresql+psycopg://me:secret@host/bench?sslmode=require"


def test_no_password_is_printed(monkeypatch, capsys):
    sweep = SimpleNamespace(id="s1", cells=1, baseline_mode="eager", host={}, imported_at=None)
    server = SimpleNamespace(
        name=URL.replace("secret", "***"), find_sweep=lambda ref: sweep, results=lambda ref: [], environments=list
    )
    monkeypatch.setattr(show.Store, "open", lambda url, mode: nullcontext(server))
    for state, code in (("completed", 0), ("interrupted", 130)):
        assert show.end_of_sweep(Outcome("s1", URL, state, "fail", [])) == code
        out = capsys.readouterr().out
        assert "secret" not in out
        assert "me:***@host/bench" in out
