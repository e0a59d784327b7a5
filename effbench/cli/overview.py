"""What `effbench --help` prints: the purpose, examples and all commands on one screen. It imports
no command."""

from __future__ import annotations

INTRODUCTION = """\
effbench benchmarks PyTorch models: every model × batch size × mode, each in its own process.
It shows which mode is fastest, what the mode costs, and whether a model became slower.

Sweep     effbench -m SETTING=VALUE,VALUE ...
Command   effbench COMMAND ...                  (effbench COMMAND --help lists its options)

Examples
  effbench -m model=mlp bs=1,8 mode=eager,default protocol=quick      # a first look
  effbench -m model=resnet50 bs=1,8,64 mode=eager,default,cuda-graph  # with confidence intervals
  effbench -m model=custom model.module._target_=net.py:Net 'model.inputs.x.shape=[16]' \\
              bs=1,8 mode=eager,default                               # your own model
  effbench -m resume=last                                             # continue a sweep
"""
SETTINGS = """\
Settings
  effbench --cfg job prints every setting with its value; --info explains where it comes from.
  docs/reference explains all settings and modes; `effbench models` lists what model= takes.
  --dry-run prints a sweep's plan; --config-dir=DIR adds YAML files; -v prints what effbench does.
"""
#: Purpose -> its commands -> the beginning of the command's own help.
GROUPS = {
    "Everyday": {
        "show": "Print the speedup table of a sweep",
        "ls": "List the sweeps in the database",
        "report": "Write an HTML report of the database",
        "compare": "Compare two sweeps cell by cell",
        "explain": "Explain where the time went between two cells of stored sweeps",
        "duet": "Measure which of two versions or modes is faster",
        "bisect": "Find which setting or commit makes two configurations differ",
        "coldstart": "Measure what the first answer of a fresh process costs in each mode",
        "advise": "Recommend the mode for a model at one batch size",
        "models": "List the models that effbench ships",
        "doctor": "Check what this machine can measure and what would disturb it",
    },
    "Gate": {
        "baseline": "Name a sweep as a baseline",
        "check": "Compare a sweep with a baseline; exit with 1 if a cell is slower, broken or"
        " missing",
        "history": "List the change points of every cell over all sweeps",
    },
    "Study": {
        "reproduce": "Run one or all experiments and judge the claims that they test",
        "claims": "List published claims about CUDA graphs and torch.compile",
    },
    "Maintenance": {
        "export": "Write the view `results` as CSV",
        "import": "Import whole sweeps from files",
        "db": "Upgrade a database to this version's schema",
    },
}


def overview() -> str:
    """Return the text of `effbench --help`."""
    lines = [INTRODUCTION]
    for title, summaries in GROUPS.items():
        lines.append(title)
        lines += [f"  {name:<11}{summary}" for name, summary in summaries.items()]
    return "\n".join([*lines, SETTINGS])
