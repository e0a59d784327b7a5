"""What is stored of a command, and what of it is used again."""

from __future__ import annotations

from types import SimpleNamespace

import whole_sweeps as whole
from effbench.sweeping import planned, resume

from effbench.store import Store
from effbench.sweep.interpreters import Unit
from effbench.sweep.progress import Progress

DB = "db=postgresql://me:s3cret@host/x"


def test_a_sweep_is_stored_without_the_password(tmp_path):
    settings = SimpleNamespace(resume=None, sweep={"name": "x", "label": None, "seed": 0}, protocol={"rounds": 1})
    settings.baseline_mode = "eager"
    with Store.open(tmp_path / "x.db", mode="write") as store:
        units = [Unit(cell) for cell in whole.cells(2)]
        planned.begin(
            store, settings, planned.Command(["-m", "bs=1", DB], ["bs=1", DB]), units, {}, Progress(quiet=True)
        )
        info = store.find_sweep("x")
    assert info.command == ["-m", "bs=1", "db=postgresql://me:***@host/x"]
    assert info.overrides == ["bs=1", "db=postgresql://me:***@host/x"]


def test_it_goes_on_where_it_was_found(tmp_path):
    """Not where the stored word says: that may be another database, and has no password."""
    path = tmp_path / "x.db"
    with Store.open(path, mode="write") as store:
        sweep_id = whole.sweep(store, overrides=["bs=1", "db=postgresql://me:***@host/x", "mode=eager"])
    words, _ = resume.expand(["resume=last", f"db={path}"])
    assert words == ["bs=1", "mode=eager", f"db={path}", f"resume={sweep_id}"]
