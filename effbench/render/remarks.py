"""Lines about how a row was measured: settings that no column shows, dropout that is off,
gradients, pairs, the speed of the host, and the hosts of a joined sweep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from effbench.core.labels import LabelledResult, LabelledResults, flatten
from effbench.core.printable import listed, one_line
from effbench.run.plan import OF_SWEEP
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo
from effbench.store.values import ResultKey

#: Number of cells that a line names before it counts the rest.
MOST_NAMES = 3
#: Settings that every table has in its columns.
IN_COLUMNS = ("model", "model.name", "model.arch", "bs", "mode")
#: Number of settings that a line has before it counts the rest, and characters of each.
MOST_SETTINGS = 8
LONGEST_SETTING = 60
#: Parts of `extra` that the remarks need.
NAMES = ("dropout_off", "grad_mode_reason", "no_pairs", "facts")
#: Dotted path in these parts -> what its value is about.
REMARKS = {
    "dropout_off": "dropout off in training",
    "grad_mode_reason": "another grad_mode for all modes",
    "no_pairs": "speedups of separate processes",
    "facts.weights_differ": "weights differ between processes",
}


def remarks_on(store: Store, sweep: SweepInfo, rows: LabelledResults) -> list[str]:
    """Return a line for each remark, with the rows that it is about. The modes of a row share most
    remarks, so a line names a row and its modes once."""
    facts = store.trial_facts(sweep.id, NAMES)
    cases: dict[str, dict[str, None]] = {}
    for row in rows:
        key = ResultKey(row.cell_key, row.environment_id)
        for text in texts_of(facts.get(key, {}), row):
            cases.setdefault(one_line(text), {})[row.case] = None
    lines = [*joined_hosts(sweep), *single_values(store, sweep, rows)]
    for text, names in cases.items():
        lines.append(f"{listed([*names], MOST_NAMES)}: {text}")
    return lines


def joined_hosts(sweep: SweepInfo) -> list[str]:
    """Return a line with the hosts of a joined sweep; none for other sweeps."""
    hosts = [f"{facts.get('host')} ({facts.get('cpu_name')})" for facts in sweep.joined]
    if not hosts:
        return []
    return [one_line(f"over {len(hosts)} hosts: {', '.join(hosts)}")]


def single_values(store: Store, sweep: SweepInfo, rows: LabelledResults) -> list[str]:
    """Return a line with the overrides that have one value in this sweep: the table has columns
    only for those with several. None without such overrides."""
    shown = set(IN_COLUMNS)
    for row in rows:
        shown.update(row.labels)
    values: dict[str, dict[str, None]] = {}
    for words in store.cell_overrides(sweep.id).values():
        for word in words or ():
            name, _, _ = word.lstrip("+").partition("=")
            values.setdefault(name, {})[word] = None
    texts = []
    for name, given in values.items():
        section, _, _ = name.partition(".")
        if len(given) > 1 or name in shown or section in OF_SWEEP or name.startswith("-"):
            continue
        texts += [one_line(word, LONGEST_SETTING) for word in given]
    if not texts:
        return []
    return [f"settings: {listed(texts, MOST_SETTINGS)}"]


def texts_of(facts: Mapping[str, Any], row: LabelledResult) -> Iterator[str]:
    """Yield what is special about how a row was measured."""
    # no pairs: unless that holds for all cells of this kind
    is_plain = row.phase == "inference" and "stream" not in row.params
    for name, about in REMARKS.items():
        value = flatten(facts).get(name)
        if value and (is_plain or name != "no_pairs"):
            yield f"{about}: {value}"
