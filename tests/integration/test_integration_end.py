"""What the end of a sweep prints of its database."""

from __future__ import annotations

from types import SimpleNamespace

from effbench.commands import show
from effbench.sweep.run import Outcome

URL = "postgresql+psycopg://me:secret@host/bench?sslmode=require"


class FakeStore:
    """Stands in for a server: the name is the store's own masking of the URL."""

    name = "postgresql+psycopg://me:***@host/bench?sslmode=require"

    @classmethod
    def open(cls, url: str, mode: str):
        assert url == URL
        return cls()

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def find_sweep(self, reference: str):
        return SimpleNamespace(id=reference, cells=1, baseline_mode="eager", host={}, imported_at=None)

    def results(self, sweep_id: str) -> list:
        return []

    def environments(self, ids) -> list:
        return []


def test_no_password_is_printed(monkeypatch, capsys):
    monkeypatch.setattr(show, "Store", FakeStore)
    for state, code in (("completed", 0), ("interrupted", 130)):
        assert show.end_of_sweep(Outcome("s1", "e1", URL, state, "fail", [])) == code
        said = capsys.readouterr().out
        assert "secret" not in said
        assert "me:***@host/bench" in said
