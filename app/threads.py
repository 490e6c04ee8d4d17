"""Torch in a thread that encodes: its number of threads, and copies to its device.

Torch otherwise sets the number of threads for all later threads.
"""

from __future__ import annotations

import threading

import torch

#: held while torch's number of threads differs from the process's
_changing = threading.Lock()


def use_threads(count: int) -> None:
    """Give this thread `count` torch threads, and keep the number for threads that start later."""
    with _changing:
        others = torch.get_num_threads()
        torch.set_num_threads(count)
        # Another thread restores the number: this call changes both this thread and later ones.
        restorer = threading.Thread(target=torch.set_num_threads, args=(others,))
        restorer.start()
        restorer.join()
