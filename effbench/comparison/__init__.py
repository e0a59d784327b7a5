"""Two sides joined cell by cell, the verdicts on them, the gate with its confirmation, and the history of cells."""
