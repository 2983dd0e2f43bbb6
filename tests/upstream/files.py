"""Where PyTorch's test files are, which of them are run, and how."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "NEURON_UPSTREAM_TESTS"
HOW_TO_GET = (
    f"{VARIABLE} names no folder with PyTorch's test files (test_torch.py and others): take `test/` of PyTorch's "
    "repository at a tag near the installed torch, or of Debian's source package pytorch"
)

_WHOLE = """
test_autograd test_binary_ufuncs test_custom_ops test_dataloader test_indexing test_linalg test_modules test_nn test_ops
test_ops_gradients test_ops_fwd_gradients test_optim test_reductions test_scatter_gather_ops test_serialization
test_shape_ops test_sort_and_select test_spectral_ops test_tensor_creation_ops test_torch test_transformers
test_type_promotion test_unary_ufuncs test_view_ops test_foreach test_segment_reductions test_masked test_complex
test_native_functions test_autocast test_decomp test_subclass test_stateless test_expanded_weights
nn/test_convolution nn/test_dropout nn/test_embedding nn/test_init nn/test_lazy_modules nn/test_load_state_dict
nn/test_module_hooks nn/test_multihead_attention nn/test_packed_sequence nn/test_parametrization nn/test_pooling
nn/test_pruning
optim/test_lrscheduler optim/test_optim optim/test_swa_utils
autograd/test_functional autograd/test_complex distributions/test_distributions
functorch/test_aotdispatch functorch/test_control_flow functorch/test_eager_transforms functorch/test_ops
functorch/test_vmap functorch/test_ac
higher_order_ops/test_invoke_subgraph higher_order_ops/test_with_effects
dynamo/test_activation_checkpointing dynamo/test_autograd_function dynamo/test_backward_higher_order_ops
dynamo/test_compile dynamo/test_ctx_manager dynamo/test_decorators dynamo/test_functions dynamo/test_higher_order_ops
dynamo/test_hooks dynamo/test_misc dynamo/test_modes dynamo/test_modules dynamo/test_optimizers dynamo/test_recompiles
dynamo/test_repros dynamo/test_sdpa dynamo/test_subclasses dynamo/test_subgraphs dynamo/test_unspec dynamo/test_view
inductor/test_torchinductor
"""

FILES = tuple(f"{name}.py" for name in _WHOLE.split())


def folder() -> Path | None:
    """Return the folder that the environment names; None if it names none, or one without the files."""
    named = os.environ.get(VARIABLE, "").strip()
    found = Path(named) if named else None
    return found.resolve() if found is not None and (found / "test_torch.py").is_file() else None


@dataclass(frozen=True)
class Side:
    """One of the two runs of a test: on our device, or where it must pass to count."""

    device: str
    kind: str  # as PYTORCH_TESTING_DEVICE_ONLY_FOR wants it
    backend: str  # what torch.compile uses where a test says no other than inductor

    @property
    def suffixes(self) -> tuple[str, str]:
        """What PyTorch appends to the names of a file's classes: one to the first's, the other to all further ones."""
        return self.kind.upper(), self.device.upper()


NEURON = Side("neuron", "privateuse1", "neuron")
CPU = Side("cpu", "cpu", "aot_eager")
SIDES = {side.device: side for side in (NEURON, CPU)}
