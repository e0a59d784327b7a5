"""The log: printed by -v, and in a file for each sweep."""

import logging

from effbench.core import logs
from effbench.store import Store


def test_a_sweep_writes_its_log_next_to_the_database(cli):
    done = cli.sweep("model=tiny", "--verbose")
    assert done.code == 0, done
    with Store.open(cli.db) as store:
        sweep = store.find_sweep("last")
    assert "-v" not in sweep.command
    assert "--verbose" not in sweep.command
    text = (cli.db.parent / "logs" / f"{sweep.id}.log").read_text()
    for logged in ("composed the configurations of 1 jobs", f"sweep {sweep.id}", "tiny"):
        assert logged in text
        assert logged in done.err
    assert cli.run("show", "-v").code == 0


def test_a_program_sees_the_log_only_if_it_asks(caplog):
    before = logs.handled(logging.NullHandler())
    with logs.collected():
        logging.getLogger("effbench.somewhere").info("planned")
    assert "planned" not in caplog.text
    with before:
        assert not logging.getLogger("effbench").propagate
    assert logging.getLogger("effbench").propagate


def test_a_log_that_cannot_be_written_ends_nothing(tmp_path):
    (tmp_path / "logs").write_text("a file")
    with logs.collected():
        logs.write_to(tmp_path, "20261129")
