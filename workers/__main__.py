"""`python -m workers` is `anchorage worker` without the command line's options."""

import os

# Set before torch is imported: spinning OpenMP threads slow a busy machine down several times.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from workers.processes import command

if __name__ == "__main__":
    command()
