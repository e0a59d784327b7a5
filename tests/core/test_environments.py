"""Names of a sweep's interpreters and folders: short, telling, and only if there are several."""

import made_sweeps
import pytest

from effbench.core.cell import StoredEnvironment
from effbench.core.environments import labels, names_by, short_names


def environment(id, interpreter=None, folder=None, **versions):
    flags = {"interpreter": interpreter, "folder": folder}
    known = {name: value for name, value in flags.items() if value}
    facts = made_sweeps.environment(flags=known, **versions)
    return StoredEnvironment(**vars(facts), id=id)


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["/venvs/a/bin/python", "/venvs/b/bin/python"], ["a", "b"]),
        (["/usr/bin/python3.11", "/usr/bin/python3.12"], ["python3.11", "python3.12"]),
        (["/usr/bin/python3", "/venvs/a/bin/python"], ["usr", "a"]),
        (["/srv/old/.venv/bin/python", "/srv/new/.venv/bin/python"], ["old", "new"]),
        (["/checkout/old", "/checkout/new"], ["old", "new"]),
        (["/a/repo", "/b/repo", "/b/fork"], ["/a/repo", "/b/repo", "/b/fork"]),
        (["/repo", "/srv/repo"], ["/repo", "/srv/repo"]),
        (["/repo", "/repo/src"], ["repo", "src"]),
        (["/checkout/new", None, "/checkout/new"], ["new", "none", "new"]),
        ([], []),
    ],
)
def test_the_shortest_telling_part(paths, names):
    assert short_names(paths, "none") == names


def labels_of(*environments):
    return labels({known.id: known.flags for known in environments})


def test_labels_only_if_there_are_several():
    old, new = (
        environment("e1", "/a/bin/python", torch_version="2.11.0"),
        environment("e2", "/b/bin/python"),
    )
    assert names_by([old, environment("e3")], "python") == {"e1": "a", "e3": "own"}
    assert labels_of(old, new) == {"e1": {"interpreter": "a"}, "e2": {"interpreter": "b"}}
    assert labels_of(environment("e1")) == {"e1": {}}
    assert labels_of(old, new, environment("e3", "/c/bin/python"))["e2"] == {"interpreter": "b"}
    folders = [
        environment("e1", "/a/bin/python", "/old"),
        environment("e2", "/a/bin/python", "/new"),
    ]
    assert labels_of(*folders) == {"e1": {"folder": "old"}, "e2": {"folder": "new"}}
    square = [environment(f"{p}{f}", f"/{p}/bin/python", f"/{f}") for p in "ab" for f in "xy"]
    assert labels_of(*square)["by"] == {"folder": "y", "interpreter": "b"}
