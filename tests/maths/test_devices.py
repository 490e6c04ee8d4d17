"""Every function of `app.maths` that takes tensors gives the CPU's result where they are on another
device.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import pytest
from torch import Tensor

import app.maths
from tests.maths.devices import (
    rooms_geometry,
    rooms_growth,
    rooms_quality,
    rooms_reports,
    rooms_translators,
)
from tests.maths.devices.common import Case, assert_same, moved, plain
from tests.second_device import DEVICE, second_device

ROOMS = (rooms_geometry, rooms_translators, rooms_quality, rooms_reports, rooms_growth)
CASES: dict[str, Case] = {name: case for room in ROOMS for name, case in room.CASES.items()}

#: Functions without a case, each with the reason.
EXEMPT = {"bootstrap.pools.ignore_step": "does nothing"}


def copied(value: Any) -> Any:
    """On the CPU; a copy, because some functions write into their arguments."""
    return moved(value, Tensor.clone)


def to_device(value: Any) -> Any:
    return moved(value, lambda tensor: tensor.to(DEVICE))


@pytest.mark.parametrize("name", CASES)
def test_another_device_gives_the_cpus_result(name: str) -> None:
    expected = plain(CASES[name](copied))
    with second_device():
        result = plain(CASES[name](to_device))
    assert_same(result, expected)


def test_every_function_that_takes_tensors_has_a_case() -> None:
    functions = {
        f"{module.__name__.removeprefix('app.maths.')}.{name}"
        for module in modules()
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        and not name.startswith("_")
        and takes_tensors(function)
    }
    assert functions - EXEMPT.keys() == {name.partition("/")[0] for name in CASES}


def modules() -> list[ModuleType]:
    found = pkgutil.walk_packages(app.maths.__path__, "app.maths.")
    return [importlib.import_module(each.name) for each in found if not each.ispkg]


def takes_tensors(function: Callable[..., object]) -> bool:
    """Whether an argument is a tensor, or an object of this package that holds one."""
    arguments = inspect.get_annotations(function)
    arguments.pop("return", None)
    return any(
        word == "Tensor" or word in holders()
        for annotation in arguments.values()
        for word in re.findall(r"\w+", str(annotation))
    )


@cache
def holders() -> frozenset[str]:
    """The names of the classes and types of `app.maths` that hold tensors, directly or not."""
    annotations = {
        name: " ".join(map(str, [*inspect.get_annotations(each).values()]))
        for module in modules()
        for name, each in vars(module).items()
        if inspect.isclass(each) and each.__module__.startswith("app.maths")
    }
    known = {"Tensor", "Core", "State", "Correspondence", "Pair"}
    while more := {
        name
        for name, fields in annotations.items()
        if name not in known and known & set(re.findall(r"\w+", fields))
    }:
        known |= more
    return frozenset(known)
