"""The function that a prewarm is given by name: ``package.module:function`` or ``file.py:function``.

It takes nothing and returns ``(target, inputs)``: what `compile_only` captures, and the tuples of inputs to capture it
with; or in place of these a function that makes one such tuple from a shape, for ``--shapes``.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from client.buckets import Shape


@dataclass(frozen=True, slots=True)
class Prepared:
    """What to capture: ``target``, and for each bucket its ``label`` and inputs."""

    target: Callable[..., Any]
    labels: list[str] | None
    buckets: list[tuple[Any, ...]]


def find(text: str) -> Callable[[], Any]:
    """Return the function called ``text``; raises `ConfigurationError` if there is none, or its module fails."""
    place, colon, name = text.rpartition(":")
    if not (colon and place and name):
        raise ConfigurationError(f"{text!r} is no entry point: expected package.module:function or file.py:function")
    module = _from_file(Path(place)) if place.endswith(".py") or "/" in place else _from_package(place)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        functions = sorted(
            each
            for each, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        )
        known = f"; it has {', '.join(functions)}" if functions else ""
        raise ConfigurationError(f"{place} has no function {name!r}{known}")
    result: Callable[[], Any] = found
    return result


def prepare(function: Callable[[], Any], text: str, shapes: Sequence[Shape]) -> Prepared:
    """Call the entry point, and its inputs for each of ``shapes``; raises `ConfigurationError` for what it gives."""
    result = _called(function, text)
    if not (isinstance(result, tuple) and len(result) == 2 and callable(result[0])):  # noqa: PLR2004 - a pair
        raise ConfigurationError(
            f"{text} returned a {type(result).__name__}: expected (module or function, inputs), where inputs are a "
            "list of tuples, or a function that makes a tuple from a shape"
        )
    target, inputs = result
    if callable(inputs):
        if not shapes:
            raise ConfigurationError(f"{text} makes inputs from a shape: say which with --shapes, such as 64,128")
        made = [_called(inputs, text, shape[0] if len(shape) == 1 else shape) for shape in shapes]
        return Prepared(target, ["x".join(map(str, shape)) for shape in shapes], [_tuple(each, text) for each in made])
    if shapes:
        raise ConfigurationError(
            f"{text} gives its inputs itself: leave out --shapes, or let it return a function of one"
        )
    if not isinstance(inputs, (list, tuple)) or not inputs:
        raise ConfigurationError(f"{text} gives no inputs: expected a list of tuples, one for each bucket")
    return Prepared(target, None, [_tuple(each, text) for each in inputs])


def _tuple(value: Any, text: str) -> tuple[Any, ...]:
    if not isinstance(value, (tuple, list)):
        raise ConfigurationError(
            f"{text} gives a {type(value).__name__} as the inputs of a bucket: expected a tuple of arguments"
        )
    return tuple(value)


def _from_package(name: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` has it
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(
                f"there is no module {name!r}: start this where `import {name}` works, or name a file.py"
            ) from error
        raise _raised(f"importing {name}", error) from error
    except Exception as error:
        raise _raised(f"importing {name}", error) from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigurationError(f"there is no file {path}: expected package.module:function or file.py:function")
    sys.path.insert(0, str(path.resolve().parent))  # as `python file.py` has it
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{path} is no Python file: expected file.py:function")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _raised(f"running {path}", error) from error
    return module


def _called(function: Callable[..., Any], text: str, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        raise _raised(text, error) from error


def _raised(what: str, error: Exception) -> ConfigurationError:
    """Return the user's own error as one sentence with the line it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if "neuron_backend/prewarm" not in frame.filename]
    where = f" (at {outside[-1].filename}:{outside[-1].lineno})" if outside else ""
    said = str(error).strip().partition("\n")[0]
    return ConfigurationError(f"{what} raised {type(error).__name__}: {said}{where}")
