"""`python -m workers` is `anchorage worker` without the command line's options."""

from workers.processes import command

if __name__ == "__main__":
    command()
