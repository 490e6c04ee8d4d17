"""`python -m workers` is `anchorage worker` without the command line's options."""

import os

# Before torch is loaded: threads that spin while they wait slow a busy machine several times.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from workers.processes import command

if __name__ == "__main__":
    command()
