"""Print the keys of a small model's graphs and operators, computed as a job computes them; nothing is compiled.

``PROBE_VARIANTS`` is a JSON list of settings; the keys under each are printed as a JSON list. Run as a program in a
process of its own: the tests move and shift this file, and change its surroundings.
"""

import copy
import json
import os
import sys

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from client.names import Kind
from neuron_backend import programs
from neuron_backend.compilers import get_compiler
from neuron_backend.lowering import decompositions, lower, trace, trim, used_inputs


def network_keys(environ):
    """Return the keys of forward and backward graph and of four operators under the settings of ``environ``."""
    dtype = getattr(torch, environ.get("PROBE_DTYPE", "float32"))
    width = int(environ.get("PROBE_WIDTH", "16"))
    constant = float(environ.get("PROBE_CONSTANT", "0.5"))
    compiler = get_compiler(environ)
    keys = []

    def keep(kind, graph):
        trim(graph)
        used_inputs(graph)
        keys.append(programs.key_document(kind, lower(graph), compiler.configuration(kind)).key)

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = torch.nn.Conv1d(4, 8, 3, padding=1)
            self.norm = torch.nn.LayerNorm(width)
            self.head = torch.nn.Linear(width, 5)

        def forward(self, x):
            return self.head(torch.nn.functional.gelu(self.norm(self.convolution(x)))) * constant

    def compiled(graph, inputs):
        def kept(inner, _):
            keep(Kind.GRAPH, torch.fx.GraphModule(inner, copy.deepcopy(inner.graph)))
            return make_boxed_func(inner.forward)

        return aot_autograd(fw_compiler=kept, decompositions=decompositions())(graph, inputs)

    torch._dynamo.reset()
    torch.manual_seed(int(environ.get("PROBE_SEED", "0")))  # other weight values
    network = Network().to(dtype)
    output = torch.compile(network, backend=compiled)(torch.randn(2, 4, width, dtype=dtype))
    output.sum().backward()
    example = torch.randn(3, width, dtype=dtype)
    for function in (lambda a: [a.tanh()], lambda a: [a.cumsum(-1)], lambda a: [a * constant], lambda a: [a.tan()]):
        keep(Kind.EAGER, trace(function, [example]))
    compiler.close()
    return keys


variants = json.loads(os.environ.get("PROBE_VARIANTS", "[{}]"))
json.dump([network_keys({**os.environ, **variant}) for variant in variants], sys.stdout)
