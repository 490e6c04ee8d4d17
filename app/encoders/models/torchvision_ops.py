"""Makes torchvision importable with a torch of another build, because timm and transformers import
it.
"""

from __future__ import annotations

import importlib
import sys
import threading
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import torch

#: operators of torchvision's C++ library that `import torchvision` needs
_OPERATORS = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

_lock = threading.Lock()
#: the declared operators exist as long as this object
_declared: torch.library.Library | None = None


def make_importable() -> None:
    """Make `import torchvision` work for the whole process, if it is installed.

    Call this before an import of timm or transformers. PyPI's torchvision is linked against the
    CUDA build of torch. With a CPU build its C++ library does not load, so its operators do not
    exist and the import fails. Encoders only use parts of torchvision that are written in Python,
    so declared operators without an implementation are enough.
    """
    global _declared
    with _lock:
        if _declared is not None or find_spec("torchvision") is None:
            return
        with suppress(Exception):  # it may fail for other reasons, which its users will meet too
            importlib.import_module("torchvision")
            return
        for module in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[module]
        _declared = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in _OPERATORS:
            _declared.define(name + _SCHEMA)  # type: ignore[no-untyped-call]


def import_timm(module: str = "timm") -> Any:
    """Return a module of timm or torchvision."""
    make_importable()
    return importlib.import_module(module)
