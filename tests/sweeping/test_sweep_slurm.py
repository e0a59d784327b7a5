"""What the queue of a cluster says about a job; without a cluster."""

from unittest.mock import MagicMock

from effbench.sweeping.executors.slurm import Cluster, Job


def test_a_job_is_lost_if_two_looks_in_a_row_find_it_ended(tmp_path):
    job = Job("7", tmp_path, [], tries=0, left=1)
    answers = ({}, {"7": "RUNNING"}, None, {"7": "FAILED"}, None, {})
    assert [Cluster.watch(MagicMock(), job, states) and "lost" for states in answers] == [*[None] * 5, "lost"]
