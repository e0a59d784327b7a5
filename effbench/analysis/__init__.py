"""Compare sweeps cell by cell, confirm slowdowns by running them again, and find changes in the
history of cells. Where each question is decided:

- which cells of two sweeps are compared: `matching.compared_cells`
- which verdict a row of a comparison has: `verdicts.judge`; after a re-run: `confirm.settle`
- which change is large enough to count: `limits.Limits.of`
- which mode wins a row of a table: `winners.winners`; which one to run: `advice.recommend`
- what changed in the history of a cell: `history.judged`
- when a trial is `degraded`: `RunningTrial.judge` in worker/trial.py; a cell has the worst
  status of its trials: `store.summary`
"""
