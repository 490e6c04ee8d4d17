"""`python -m workers` is `anchorage worker` without the command line's options."""

import os

# Before torch is loaded: threads that spin while they wait for each other make a busy machine several times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from workers.processes import command

if __name__ == "__main__":
    command()
