"""The `anchorage` command."""

from __future__ import annotations

import os
import sys

#: the exit code after a Ctrl-C, as shells say it
INTERRUPTED = 130


def main() -> None:
    """Run the command: the console script's entry point."""
    try:
        from app.cli.commands import cli  # imported here, so that a Ctrl-C is no traceback

        cli()
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        _leave()
    except SystemExit as end:
        if end.code == INTERRUPTED:
            _leave()
        raise


def _leave() -> None:
    """End the process at once: threads may still compute, and their results are not wanted."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(INTERRUPTED)
