"""How long the site's pages of history, claims, failures and environments take, and how much a reader loads.

    python benchmarks/ledger_pages_speed.py [--cells 1000] [--sweeps 20] [--trials 5] [--db FILE]

The database is made up (benchmarks/synthetic.py); 1000 cells × 20 sweeps × 5 trials are 100,000 trials. Seconds are of
this process alone (CPU time), so that another's work beside it does not count; after them stand wall-clock ones.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from effbench.commands.material import newest, subjects_of
from effbench.report.site.changed import changed
from effbench.report.site.material import Material
from effbench.report.site.pages.base import PageFolder
from synthetic import Plan, fill

from effbench.commands import ledgers
from effbench.report.site.pages import claims, environments, failures, history
from effbench.report.site.writer import Writer
from effbench.store import Store


@contextmanager
def timed(what: str) -> Iterator[None]:
    cpu, wall = time.process_time(), time.perf_counter()
    yield
    print(f"{what}: {time.process_time() - cpu:.2f} s ({time.perf_counter() - wall:.2f} s)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--sweeps", type=int, default=20)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--db", help="keep the database here; one that is there is taken as it is")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        db = Path(args.db or f"{folder}/ledgers.db")
        if not db.exists():
            fill(db, Plan(cells=args.cells, sweeps=args.sweeps, trials=args.trials, with_trials=True))
        print(f"database: {db.stat().st_size / 2**20:.0f} MiB")
        with Store.open(str(db)) as store:
            infos = store.sweeps()
            with timed("the newest sweep's rows"):
                subjects = [subject for info in newest(store, infos) for subject in subjects_of(store, info)]
            with timed("read and judge history"):
                past = ledgers.past(store)
            for subject in subjects:
                with timed("compare with the sweep before"):
                    subject.changes = ledgers.changes(store, subject, ledgers.cells_of_sweep(past.series), infos)
                found = changed(subject.changes)
                print(f"  {found['why'] or found['counts']}")
            places = store.environments()
            with timed("claims and calibrations"):
                rest = {"claims": ledgers.ledger(store), "calibrations": ledgers.calibrations(store, places)}
        sweeps = [vars(info) for info in infos]
        material = Material(str(db), subjects, sweeps, places, history=past, **rest)
        for page in (history, claims, environments, failures):
            for subject in subjects if page.PAGE.of_subject else [None]:
                writer = Writer(Path(folder) / "site")
                with timed(f"write {page.PAGE.name}"):
                    page.context(PageFolder(page.PAGE.name, material, writer, subject))
                sizes = {Path(name).name: size for name, size in writer.written.items()}
                first = sum(size for name, size in sizes.items() if "-lines-" not in name)
                lines = [size for name, size in sizes.items() if "-lines-" in name]
                more = f", then one of {len(lines)} files of up to {max(lines) / 2**20:.2f} MiB" if lines else ""
                print(f"  {first / 2**20:.2f} MiB loaded at first{more}; {writer.size() / 2**20:.1f} MiB in all")
    print(f"memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:.0f} MiB")


if __name__ == "__main__":
    main()
