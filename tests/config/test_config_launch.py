"""A program that uses Hydra and logging itself keeps its state."""

import logging

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobRuntime

from effbench.config import plugins
from effbench.config.launch import hydra_sweep, jobs_of
from effbench.config.overrides import read
from effbench.core.settings import shipped
from effbench.run.sweep import Outcome


def test_a_program_keeps_its_own_hydra():
    with initialize_config_dir(str(shipped("conf")), job_name="mine", version_base="1.3"):
        own = GlobalHydra.instance().hydra
        jobs = jobs_of(read(["model=tiny", "bs=1,2"]))
        assert GlobalHydra.instance().hydra is own
        assert JobRuntime().get("name") == "mine"
    assert [job.config.bs for job in jobs] == [1, 2]


@pytest.mark.parametrize(
    "word", ["model.module._target_=net.py:Net", "model.description='a, b'", "bs=8"]
)
def test_a_job_has_an_override_as_it_was_given(word):
    jobs = jobs_of(read(["model=tiny", "mode=eager,default", word]))
    assert [job.words[-1].text for job in jobs] == [word, word]


def test_later_jobs_of_a_sweeper_extend_its_sweep(tmp_path, monkeypatch):
    """Such as those that Optuna chooses by the latencies of the first ones."""
    monkeypatch.chdir(tmp_path)  # Hydra's own sweeper writes multirun/ there
    extended = []

    def conduct(jobs, command):
        extended.append(command.extended_sweep)
        return Outcome("id", "x.db", "completed", "fail", [1.0])

    monkeypatch.setattr(plugins, "conduct", conduct)
    words = ["hydra/sweeper=basic", "hydra.sweeper.max_batch_size=1", "model=tiny", "bs=1,2,3"]
    outcome = hydra_sweep(words, quiet=True)
    assert (outcome.sweep_id, extended) == ("id", [None, "id", "id"])


def test_nothing_logs_more_after_info(capsys):
    """Hydra's --info lowers the level of all loggers: a later sweep of the same process would print
    everything."""
    before = logging.root.level, logging.root.handlers[:], logging.raiseExceptions
    assert hydra_sweep(["--info"]) is None
    assert "Defaults List" in capsys.readouterr().out
    assert (logging.root.level, logging.root.handlers, logging.raiseExceptions) == before
