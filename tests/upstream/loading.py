"""Import one of PyTorch's test files for one device, and list its tests by the names that they have on the CPU.

Runs in a child process. The files may be older than the installed torch: a name that they import and that is gone
becomes a stub, and a test that needs it fails on the CPU too and does not count.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import types
import unittest
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.upstream.files import CPU, NEURON

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.upstream.files import Side

MOST_STUBS = 80
_FOLDERS = ("", "functorch", "nn", "optim", "dynamo", "inductor")
INDUCTOR = "test_torchinductor"


class Stub:
    """Stands for a name that this torch does not have: a decorator that does nothing, an empty list, a false flag."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) and not keywords else self

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Stub:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class _StubModule(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012 - what marks a package

    def __getattr__(self, name: str) -> Stub:
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub()


def load(folder: Path, file: str, side: Side) -> types.ModuleType:
    """Import ``file`` with its tests made for the device of ``side``."""
    os.environ["PYTORCH_TESTING_DEVICE_ONLY_FOR"] = side.kind
    sys.argv = [file]
    import torch  # noqa: PLC0415 - after the variable is set

    path = folder / file
    sys.path[:0] = [str(path.parent), *(str(folder / name) for name in _FOLDERS)]
    torch.set_num_threads(1)
    _for_every_device()
    _compile_by(side.backend)
    for _ in range(MOST_STUBS):
        try:
            module = _imported(path)
        except ImportError as error:
            if not _stubbed(str(error)):
                raise
            sys.modules.pop(path.stem, None)
        else:
            if path.stem == INDUCTOR:
                _add_inductors_tests(module, side)
            return module
    raise ImportError(f"{file} imports more than {MOST_STUBS} names that are not there")


def _imported(path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    # endless where the class of a device is derived from the general one, as it is since the files were written
    source = path.read_text().replace("super(self.__class__, self)", "super()")
    exec(compile(source, str(path), "exec"), vars(module))  # noqa: S102 - it is what was asked for
    return module


def _stubbed(complaint: str) -> bool:
    """Put a stub where an import found nothing; say so on standard error."""
    if found := re.match(r"cannot import name '(\w+)' from (?:partially initialized module )?'([\w.]+)'", complaint):
        setattr(sys.modules[found[2]], found[1], [] if found[1].endswith("_tests") else Stub())
    elif found := re.match(r"No module named '([\w.]+)'", complaint):
        sys.modules[found[1]] = _StubModule(found[1])
    else:
        return False
    sys.stderr.write(f"stubbed: {found[0]}\n")
    return True


def _for_every_device() -> None:
    """Make tests for our device too where a file wants them for the CPU and other devices by name."""
    from torch.testing._internal import common_device_type  # noqa: PLC0415

    instantiate = common_device_type.instantiate_device_type_tests

    def for_ours(generic: type, scope: dict[str, Any], *arguments: Any, only_for: Any = None, **keywords: Any) -> None:
        named = (only_for,) if isinstance(only_for, str) else only_for
        if named and "cpu" in named:
            named = (*named, NEURON.kind)
        instantiate(generic, scope, *arguments, only_for=named, **keywords)

    common_device_type.instantiate_device_type_tests = for_ours
    each_operator = common_device_type.ops._parametrize_test

    def of_those_there(self: Any, *arguments: Any) -> Iterator[Any]:
        if self.op_list:  # older files choose operators by what newer ones do not have: none is left, and no error
            yield from each_operator(self, *arguments)

    common_device_type.ops._parametrize_test = of_those_there


def _compile_by(backend: str) -> None:
    """Let ``backend`` compile whatever a test gives to inductor."""
    import torch  # noqa: PLC0415
    from torch._dynamo.backends import registry  # noqa: PLC0415

    look_up = registry.lookup_backend

    def ours(named: Any) -> Any:
        return look_up(backend if named == "inductor" else named)

    for holder in [module for name, module in sys.modules.items() if name.startswith("torch")]:
        if vars(holder).get("lookup_backend") is look_up:
            holder.lookup_backend = ours  # type: ignore[attr-defined]
    torch._TorchCompileInductorWrapper = lambda *_arguments, **_keywords: look_up(backend)


def _add_inductors_tests(module: Any, side: Side) -> None:
    """Copy inductor's common tests for the device: eager on it against compiled for it."""
    import torch  # noqa: PLC0415
    from torch._dynamo.backends.registry import lookup_backend  # noqa: PLC0415
    from torch.utils._pytree import tree_map_only  # noqa: PLC0415

    module.compile_fx = lookup_backend(side.backend)

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == side.device:
            return tensor
        held = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=side.device)
        with torch.no_grad():
            held.copy_(tensor)
        return held.requires_grad_(tensor.requires_grad)

    def common(self: Any, model: Any, inputs: Any, kwargs: Any = None, **options: Any) -> None:
        options.pop("copy_to_gpu", None)
        options.pop("check_lowp", None)
        if isinstance(model, torch.nn.Module):
            model = model.to(side.device)
        inputs, kwargs = (tree_map_only(torch.Tensor, moved, each) for each in (inputs, kwargs or {}))
        module.check_model(self, model, inputs, kwargs, **options)

    for name in [name for name, each in vars(module).items() if _is_case(each) and each is not module.TestCase]:
        delattr(module, name)  # those for the devices that inductor knows
    members = {"common": common, "device": side.device, "__module__": module.__name__}
    tests = type(f"CommonTemplate{side.suffixes[0]}", (module.TestCase,), members)
    module.copy_tests(module.CommonTemplate, tests, side.device)
    setattr(module, tests.__name__, tests)


def _is_case(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, unittest.TestCase) and value is not unittest.TestCase


@dataclass(frozen=True)
class Test:
    """What makes a test, and the name under which it is written, which it shares with others."""

    make: Callable[[], unittest.TestCase]
    written: str


def tests(module: types.ModuleType, side: Side) -> dict[str, Test]:
    """Return the tests by their names on the CPU."""
    loader = unittest.TestLoader()
    found: dict[str, Test] = {}
    for name, case in list(vars(module).items()):
        if not _is_case(case) or case.__module__ != module.__name__ or name == "TestCase":
            continue
        for method in loader.getTestCaseNames(case):
            written = getattr(getattr(case, method), "__name__", method)
            found[_on_the_cpu(name, method, side)] = Test(partial(case, method), f"{name}.{written}")
    return found


def _on_the_cpu(case: str, method: str, side: Side) -> str:
    suffix = next((each for each in side.suffixes if case.endswith(each)), None)
    if suffix is not None and f"_{side.device}" in method:
        case = case.removesuffix(suffix) + CPU.suffixes[0]
        before, _, after = method.rpartition(f"_{side.device}")
        method = f"{before}_{CPU.device}{after}"
    return f"{case}.{method}"


def is_plain(name: str) -> bool:
    """Return whether a test is of no device: it is run with ours as the default."""
    return not name.partition(".")[0].endswith(CPU.suffixes[0])
