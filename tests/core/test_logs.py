"""The log: a program that imports effbench sees it on request, and it never ends a sweep."""

import logging

from effbench.core import logs


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
    with logs.collected() as log:
        logs.write(log, tmp_path, "20261129")
