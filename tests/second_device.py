"""A second device without a GPU: tensors that a CPU computes, and that refuse what CUDA refuses.

Inside `second_device()`, `tensor.to(DEVICE)` and factories with `device=DEVICE` give tensors that
claim the device `lazy:0`, a type that torch knows and that no build computes on. Each holds a
tensor of the CPU, on which every operation runs, so results are the CPU's to the last bit wherever
code does the same on both devices. Refused as on CUDA: an operation with tensors of both devices
(but for numbers of the CPU, 0-d tensors, in pointwise operations, and indices on the CPU), `numpy`,
a generator of the CPU, products of integers, and least squares by any driver but `gels`.

`SecondDeviceMode.waits` counts the operations for which the host waits for a CUDA device: copies
from and to the CPU, numbers that become Python's, results whose size depends on values, and
decompositions that check for errors. `largest` is the memory of the largest tensor, in bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("lazy:0")

#: Operations of CUDA that wait for the device, besides copies and indices, which depend on where
#: their arguments are.
WAITING = {
    *("_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "bincount"),
    *("_unique", "_unique2", "unique_dim", "unique_consecutive", "isin", "multinomial"),
    *("_linalg_svd", "_linalg_eigh", "_linalg_check_errors", "linalg_lstsq", "linalg_eig"),
}
#: Products, which CUDA has for floating-point numbers only.
PRODUCTS = {"mm", "bmm", "mv", "dot", "addmm", "addmv", "baddbmm", "addbmm"}
COPIES = {"_to_copy", "copy_", "_copy_from"}
INDEXING = {"index", "_unsafe_index", "index_put", "index_put_"}


class SecondTensor(Tensor):
    """A tensor that claims the second device; `inner` holds its numbers."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> SecondTensor:
        made = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        made.inner = inner.detach()
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(f"{func} of a tensor of the second device, outside second_device().")

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError(f"can't convert {DEVICE} device type tensor to numpy. Use Tensor.cpu().")

    def __array__(self, dtype: Any = None) -> Any:
        return self.numpy()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"second{self.inner!r}"


class Operation(NamedTuple):
    """What is known of an operation of torch.

    is_pointwise  reads numbers of the CPU too
    writes_first  writes into its first argument
    draws         random numbers
    reshapes      changes the shape of its first argument
    """

    name: str
    is_pointwise: bool
    writes_first: bool
    draws: bool
    reshapes: bool

    @staticmethod
    @cache
    def of(func: Any) -> Operation:
        arguments = func._schema.arguments
        alias = arguments[0].alias_info if arguments else None
        return Operation(
            func.overloadpacket.__name__,
            torch.Tag.pointwise in func.tags,
            alias is not None and alias.is_write,
            torch.Tag.nondeterministic_seeded in func.tags,
            torch.Tag.inplace_view in func.tags,
        )


class SecondDeviceMode(TorchDispatchMode):
    """Runs every operation, and refuses and counts as the module says."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.largest = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled, and the import would take seconds

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [*_tensors(args), *_tensors(tuple(kwargs.values()))]
        held = [tensor for tensor in tensors if isinstance(tensor, SecondTensor)]
        device = kwargs.get("device")
        is_result_here = is_second(device) if device is not None else bool(held)
        if not held and not is_result_here:
            return func(*args, **kwargs)
        if is_second(device):
            kwargs["device"] = torch.device("cpu")
        operation = Operation.of(func)
        name = operation.name
        if name in COPIES:
            self._count_copy(name, tensors, is_result_here, kwargs)
        elif name in INDEXING:
            self._check_index(name, args, tensors)
        elif len(held) < len(tensors):
            _check_devices(operation, tensors)
        _check_support(name, args, kwargs, is_result_here)
        if name in WAITING and held:
            self.waits[name] += 1
        result = _compute(func, operation, args, kwargs, held, is_result_here)
        if isinstance(result, SecondTensor):
            self.largest = max(self.largest, result.inner.untyped_storage().nbytes())
        return result

    def _count_copy(
        self, name: str, tensors: list[Tensor], is_result_here: bool, kwargs: dict[str, Any]
    ) -> None:
        """Count a copy between the devices; `copy_` copies the second of two tensors."""
        source = isinstance(tensors[-1], SecondTensor)
        target = isinstance(tensors[0], SecondTensor) if name == "copy_" else is_result_here
        if source and not target:
            self.waits["to the CPU"] += 1
        elif target and not source and not kwargs.get("non_blocking"):
            self.waits["to the device"] += 1

    def _check_index(self, name: str, args: tuple[Any, ...], tensors: list[Tensor]) -> None:
        of, indices = args[0], [index for index in args[1] if index is not None]
        for index in indices:
            if isinstance(index, SecondTensor) and not isinstance(of, SecondTensor):
                raise RuntimeError(
                    "indices should be either on cpu or on the same device as the indexed tensor "
                    "(cpu)"
                )
            if not isinstance(index, SecondTensor):
                self.waits["index on the CPU"] += 1
        if name.startswith("index_put"):
            value = args[2]
            if isinstance(value, SecondTensor) != isinstance(of, SecondTensor) and value.dim():
                raise RuntimeError(_mixed(tensors))
            if value.numel() == 1:
                return
        if any(index.dtype in {torch.bool, torch.uint8} for index in indices):
            self.waits["boolean index"] += 1


class SecondDeviceFunctions(TorchFunctionMode):
    """Makes tensors from Python's numbers on the second device, which torch does too early for a
    dispatch mode.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if func is Tensor.new_tensor:
            kwargs.setdefault("dtype", args[0].dtype)
            made = torch.tensor(*args[1:], **kwargs | {"device": "cpu"})
            return made.to(args[0].device if device is None else device)
        if func in {torch.tensor, torch.as_tensor} and is_second(device):
            return func(*args, **kwargs | {"device": "cpu"}).to(device)
        if func in {Tensor.__getitem__, Tensor.__setitem__} and isinstance(args[0], SecondTensor):
            args = (args[0], _index_tensors(args[1]), *args[2:])
        return func(*args, **kwargs)


def _index_tensors(index: Any) -> Any:
    """The index, with lists as tensors on the device: as torch itself indexes."""
    if isinstance(index, tuple):
        return tuple(_index_tensors(part) for part in index)
    if isinstance(index, list):
        return torch.tensor(index, dtype=None if index else torch.int64).to(DEVICE)
    return index


@contextmanager
def second_device() -> Iterator[SecondDeviceMode]:
    """A context in which `DEVICE` exists, as the mode whose `waits` counts."""
    with SecondDeviceFunctions(), SecondDeviceMode() as mode:
        yield mode


@contextmanager
def _computing_shapes() -> Iterator[None]:
    """A context in which operations compute shapes only, also of devices without kernels."""
    before = torch._C._meta_in_tls_dispatch_include()
    torch._C._set_meta_in_tls_dispatch_include(True)
    try:
        yield
    finally:
        torch._C._set_meta_in_tls_dispatch_include(before)


def is_second(device: Any) -> bool:
    return device is not None and torch.device(device).type == DEVICE.type


def _mixed(tensors: list[Tensor]) -> str:
    devices = sorted({str(tensor.device) for tensor in tensors})
    return f"Expected all tensors to be on the same device, but found at least two: {devices}"


def _check_devices(operation: Operation, tensors: list[Tensor]) -> None:
    """Refuse tensors of the CPU, but for 0-d ones that a pointwise operation only reads."""
    for place, tensor in enumerate(tensors):
        is_read = operation.is_pointwise and not (operation.writes_first and place == 0)
        if not isinstance(tensor, SecondTensor) and (tensor.dim() > 0 or not is_read):
            raise RuntimeError(f"{_mixed(tensors)} ({operation.name})")


def _check_support(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], is_result_here: bool
) -> None:
    generator = kwargs.get("generator")
    if generator is not None and is_result_here:
        raise RuntimeError(
            f"Expected a '{DEVICE.type}' device type for generator but found '{generator.device}'"
        )
    if name in PRODUCTS and not args[0].is_floating_point():
        raise RuntimeError(f'"{name}" not implemented for {args[0].dtype} on {DEVICE}')
    if name == "linalg_lstsq":
        driver = kwargs.get("driver", args[3] if len(args) > 3 else None)
        if driver not in {None, "gels"}:
            raise RuntimeError("torch.linalg.lstsq: parameter `driver` should be one of (gels)")


def _compute(
    func: Any,
    operation: Operation,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    held: list[SecondTensor],
    is_result_here: bool,
) -> Any:
    """Run on the CPU, and wrap the results; what was written to keeps its wrapper."""
    if operation.name == "linalg_lstsq":
        kwargs["driver"] = "gels"
    wrappers = {id(tensor.inner): tensor for tensor in held}
    inner_args = _mapped(_opened, args)
    inner_kwargs = {name: _mapped(_opened, value) for name, value in kwargs.items()}
    with _other_numbers() if operation.draws else nullcontext():
        result = func(*inner_args, **inner_kwargs)
    if operation.reshapes:
        with no_dispatch(), _computing_shapes():
            func(*args, **kwargs)
    for tensor in held:
        if tensor.shape != tensor.inner.shape or tensor.stride() != tensor.inner.stride():
            raise NotImplementedError(f"{func} changed the shape of its argument.")
    if not is_result_here and id(result) not in wrappers:
        return result

    def wrapped(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return wrappers[id(leaf)] if id(leaf) in wrappers else SecondTensor(leaf)

    return _mapped(wrapped, result)


def _opened(leaf: Any) -> Any:
    return leaf.inner if isinstance(leaf, SecondTensor) else leaf


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)([_mapped(function, part) for part in value])
    return function(value)


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors of an argument, which may be a list of them."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)


@contextmanager
def _other_numbers() -> Iterator[None]:
    """Another device draws other numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch.initial_seed() + 1)
        yield
