"""torchvision beside a torch of another build: timm, and transformers where torchvision is installed, import it."""

from __future__ import annotations

import importlib
import sys
import threading
from importlib.util import find_spec

import torch

#: operators of torchvision's C++ library that `import torchvision` describes to torch, and cannot where the library does not load
_OPERATORS = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

_lock = threading.Lock()
#: holds the declarations: they end with this object
_declared: torch.library.Library | None = None


def make_importable() -> None:
    """Make `import torchvision` work, once and for the whole process, where it is installed; call before timm and transformers.

    PyPI's torchvision is linked against torch's CUDA build. Beside a CPU build its C++ library does not load, its operators do
    not exist, and the import fails at the first of them. What encoders need of torchvision is written in Python, so that
    declaring the operators is enough: to call one remains an error.
    """
    global _declared
    with _lock:
        if _declared is not None or find_spec("torchvision") is None or _imports():
            return
        _declared = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for name in _OPERATORS:
            _declared.define(name + _SCHEMA)  # type: ignore[no-untyped-call]
        _imports()


def _imports() -> bool:
    """Whether torchvision can be imported; False only where its operators are what it lacks."""
    try:
        importlib.import_module("torchvision")
    except Exception as error:  # its own import may fail in many ways, and only one is ours to mend
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        return "torchvision::" not in str(error)
    return True
