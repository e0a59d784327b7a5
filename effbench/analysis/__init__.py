"""Compare sweeps cell by cell, confirm slowdowns by running them again, and find changes in the
history of cells."""
