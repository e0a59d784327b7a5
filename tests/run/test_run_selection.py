"""Which cells of a matrix are planned: rules that exclude some."""

import dataclasses

import pytest
from made_sweeps import a_cell

from effbench.core.errors import ConfigError
from effbench.run.selection import excluded

CELLS = [
    a_cell(mode, model, bs, settings={"fullgraph": True} if mode == "default" else {})
    for model in ("mlp", "gpt2")
    for bs in (1, 64, 512)
    for mode in ("eager", "default", "cuda-graph")
]


@pytest.mark.parametrize(
    ("rule", "fits"),
    [
        (
            {"mode": "cuda-graph", "bs": ">64"},
            lambda cell: cell.mode_name == "cuda-graph" and cell.bs > 64,
        ),
        ({"bs": [1, ">=512"]}, lambda cell: cell.bs in (1, 512)),
        ({"model": "gpt2", "bs": "64"}, lambda cell: cell.model_name == "gpt2" and cell.bs == 64),
        ({"mode.fullgraph": True}, lambda cell: cell.mode_name == "default"),
        ({"numerics.tf32": "false", "bs": 1}, lambda cell: cell.bs == 1),
    ],
    ids=range(5),
)
def test_a_rule_matches_cells_that_fit_all_its_keys(rule, fits):
    assert excluded(CELLS, [rule]) == (set(filter(fits, CELLS)), [])


def test_a_rule_that_matches_no_cell_is_named():
    assert excluded(CELLS, [{"model": ">3"}]) == (set(), [{"model": ">3"}])


def test_a_rule_reads_numbers_of_variables_and_settings_of_networks():
    cells = [a_cell(env={"OMP_NUM_THREADS": number}) for number in ("2", "16", "all")]
    cells += [
        dataclasses.replace(
            cells[0], model={"name": "a", "module": {"arch": "a", "image_size": 32}}
        )
    ]
    assert excluded(cells, [{"env.OMP_NUM_THREADS": ">2"}]) == ({cells[1]}, [])
    assert excluded(cells, [{"model.arch": "a", "model.image_size": "<64"}]) == ({cells[3]}, [])


def test_a_rule_matches_cells_of_one_device_by_none():
    cells = [a_cell(parallel=parallel) for parallel in (None, "tp2", "ddp2")]
    assert excluded(cells, [{"parallel": "none"}]) == ({cells[0]}, [])
    assert excluded(cells, [{"parallel": ["tp2", "ddp2"]}]) == ({*cells[1:]}, [])


@pytest.mark.parametrize(
    ("rules", "error"),
    [
        ([{"moed": "eager"}], "no cell has the key 'moed': did you mean mode"),
        ([{}], "must be a list of rules"),
        ([{"bs": "<many"}], "expected a number in '<many'"),
    ],
)
def test_rules_that_are_refused(rules, error):
    with pytest.raises(ConfigError, match=error):
        excluded(CELLS, rules)
