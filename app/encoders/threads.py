"""How many of torch's threads a thread has: torch keeps one number for all that start later."""

from __future__ import annotations

import threading

import torch

#: held while torch's number of threads is another than the process's
_changing = threading.Lock()


def use_threads(count: int) -> None:
    """Give this thread so many of torch's, and leave the number that threads started later get, which torch sets as well."""
    with _changing:
        others = torch.get_num_threads()
        torch.set_num_threads(count)
        restorer = threading.Thread(target=torch.set_num_threads, args=(others,))
        restorer.start()
        restorer.join()
