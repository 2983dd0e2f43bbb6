"""Every name of torch that we use and torch does not document: where it is, and that torch has it.

A name is looked up when it is first imported from here, so that ``import torch`` pays for none. One that a version of
torch does not have is an ImportError that says so, of whatever needs it and of nothing else. torch 2.13 has them all.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from torch._C import DisableTorchFunction as DisableTorchFunction
    from torch._C import DispatchKey as DispatchKey
    from torch._C._dynamo.eval_frame import set_code_exec_strategy as set_code_exec_strategy
    from torch._C._dynamo.eval_frame import set_eval_frame as set_eval_frame
    from torch._decomp import core_aten_decompositions as core_aten_decompositions
    from torch._decomp import decomposition_table as decomposition_table
    from torch._decomp import get_decompositions as get_decompositions
    from torch._decomp import meta_table as meta_table
    from torch._dynamo import trace_rules as trace_rules
    from torch._dynamo.backends.common import aot_autograd as aot_autograd
    from torch._dynamo.convert_frame import compile_lock as compile_lock
    from torch._functorch.aot_autograd import make_boxed_func as make_boxed_func  # type: ignore[attr-defined]
    from torch._functorch.partitioners import default_partition as default_partition
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack as temporarily_clear_interpreter_stack
    from torch._guards import CompileContext as CompileContext
    from torch._guards import TracingContext as TracingContext
    from torch._guards import tracing as tracing
    from torch._ops import OpOverload as OpOverload
    from torch._prims_common import suggest_memory_format as suggest_memory_format
    from torch._subclasses.fake_impls import op_implementations_dict as op_implementations_dict
    from torch._subclasses.fake_impls import register_op_impl as register_op_impl
    from torch._subclasses.fake_tensor import DataDependentOutputException as DataDependentOutputException
    from torch._subclasses.fake_tensor import DynamicOutputShapeException as DynamicOutputShapeException
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
    from torch._subclasses.fake_tensor import unset_fake_temporarily as unset_fake_temporarily
    from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode as ProxyTorchDispatchMode
    from torch.fx.experimental.proxy_tensor import PythonKeyTracer as PythonKeyTracer
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing as disable_proxy_modes_tracing
    from torch.fx.experimental.proxy_tensor import get_proxy_slot as get_proxy_slot
    from torch.fx.experimental.proxy_tensor import track_tensor_tree as track_tensor_tree
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass as is_traceable_wrapper_subclass
    from torch.utils._pytree import tree_leaves as tree_leaves
    from torch.utils._pytree import tree_map_only as tree_map_only

SUPPORTED: Final = ("2.13", "2.14", "2.15")
"""The versions of torch that this package was made for."""

_PLACES: Final = {
    "CompileContext": ("torch._guards", "CompileContext"),
    "DataDependentOutputException": ("torch._subclasses.fake_tensor", "DataDependentOutputException"),
    "DisableAutocast": ("torch._C", "_DisableAutocast"),
    "DisableTorchDispatch": ("torch._C", "_DisableTorchDispatch"),
    "DisableTorchFunction": ("torch._C", "DisableTorchFunction"),
    "DispatchKey": ("torch._C", "DispatchKey"),
    "DynamicOutputShapeException": ("torch._subclasses.fake_tensor", "DynamicOutputShapeException"),
    "FakeTensorMode": ("torch._subclasses.fake_tensor", "FakeTensorMode"),
    "ForceDispatchKeyGuard": ("torch._C", "_ForceDispatchKeyGuard"),
    "OpOverload": ("torch._ops", "OpOverload"),
    "FrameAction": ("torch._C._dynamo.eval_frame", "_FrameAction"),
    "FrameExecStrategy": ("torch._C._dynamo.eval_frame", "_FrameExecStrategy"),
    "ProxyTorchDispatchMode": ("torch.fx.experimental.proxy_tensor", "ProxyTorchDispatchMode"),
    "PythonKeyTracer": ("torch.fx.experimental.proxy_tensor", "PythonKeyTracer"),
    "TracingContext": ("torch._guards", "TracingContext"),
    "aot_autograd": ("torch._dynamo.backends.common", "aot_autograd"),
    "compile_lock": ("torch._dynamo.convert_frame", "compile_lock"),
    "core_aten_decompositions": ("torch._decomp", "core_aten_decompositions"),
    "decomposition_table": ("torch._decomp", "decomposition_table"),
    "default_partition": ("torch._functorch.partitioners", "default_partition"),
    "disable_current_modes": ("torch.utils._python_dispatch", "_disable_current_modes"),
    "disable_proxy_modes_tracing": ("torch.fx.experimental.proxy_tensor", "disable_proxy_modes_tracing"),
    "dynamo_config": ("torch._dynamo", "config"),
    "excluded_keys": ("torch._C", "_dispatch_tls_local_exclude_set"),
    "get_decompositions": ("torch._decomp", "get_decompositions"),
    "get_proxy_slot": ("torch.fx.experimental.proxy_tensor", "get_proxy_slot"),
    "included_keys": ("torch._C", "_dispatch_tls_local_include_set"),
    "is_op_registered_to_fake_rule": ("torch._subclasses.fake_impls", "_is_op_registered_to_fake_rule"),
    "is_traceable_wrapper_subclass": ("torch.utils._python_dispatch", "is_traceable_wrapper_subclass"),
    "make_boxed_func": ("torch._functorch.aot_autograd", "make_boxed_func"),
    "meta_table": ("torch._decomp", "meta_table"),
    "op_implementations_dict": ("torch._subclasses.fake_impls", "op_implementations_dict"),
    "register_op_impl": ("torch._subclasses.fake_impls", "register_op_impl"),
    "set_code_exec_strategy": ("torch._C._dynamo.eval_frame", "set_code_exec_strategy"),
    "set_eval_frame": ("torch._C._dynamo.eval_frame", "set_eval_frame"),
    "suggest_memory_format": ("torch._prims_common", "suggest_memory_format"),
    "temporarily_clear_interpreter_stack": ("torch._functorch.pyfunctorch", "temporarily_clear_interpreter_stack"),
    "trace_rules": ("torch._dynamo", "trace_rules"),
    "tracing": ("torch._guards", "tracing"),
    "track_tensor_tree": ("torch.fx.experimental.proxy_tensor", "track_tensor_tree"),
    "tree_leaves": ("torch.utils._pytree", "tree_leaves"),
    "tree_map_only": ("torch.utils._pytree", "tree_map_only"),
    "unset_fake_temporarily": ("torch._subclasses.fake_tensor", "unset_fake_temporarily"),
}


def unsupported(version: str) -> str | None:
    """Return, as a clause, that this package was not made for torch ``version``; None if it was."""
    if ".".join(version.split(".")[:2]) in SUPPORTED:
        return None
    return f"it was made for torch {', '.join(SUPPORTED)}, and this is torch {version}: install one of those"


def missing() -> list[str]:
    """Return the names, with their modules, that this torch does not have."""
    found = []
    for name, (module, attribute) in _PLACES.items():
        try:
            __getattr__(name)
        except ImportError:
            found.append(f"{module}.{attribute}")
    return found


def __getattr__(name: str) -> Any:
    """Look up a name in torch; raises ImportError if torch does not have it."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PLACES[name]
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        version = getattr(sys.modules.get("torch"), "__version__", "?")
        raise ImportError(
            f"torch {version} has no {module}.{attribute}, which neff-cache uses; it was made for torch "
            f"{', '.join(SUPPORTED)}"
        ) from error
    globals()[name] = found
    return found
