"""Print the keys of a small model's graphs and operators, computed as a job computes them; nothing is compiled.

Run as a program in a process of its own: the tests move and shift this file, and change its surroundings.
"""

import json
import os
import sys

import torch

from client.names import Kind
from neuron_backend import programs
from neuron_backend.compilers import get_compiler
from neuron_backend.lowering import decompositions, lower, trace, trim, used_inputs
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

DTYPE = getattr(torch, os.environ.get("PROBE_DTYPE", "float32"))
WIDTH = int(os.environ.get("PROBE_WIDTH", "16"))
CONSTANT = float(os.environ.get("PROBE_CONSTANT", "0.5"))
compiler = get_compiler(os.environ)
keys = []


def keep(kind, graph):
    trim(graph)
    used_inputs(graph)
    keys.append(programs.key_document(kind, lower(graph), compiler.configuration(kind)).key)


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv1d(4, 8, 3, padding=1)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, 5)

    def forward(self, x):
        return self.head(torch.nn.functional.gelu(self.norm(self.convolution(x)))) * CONSTANT


def compiled(graph, inputs):
    def kept(inner, _):
        keep(Kind.GRAPH, torch.fx.GraphModule(inner, __import__("copy").deepcopy(inner.graph)))
        return make_boxed_func(inner.forward)

    return aot_autograd(fw_compiler=kept, decompositions=decompositions())(graph, inputs)


torch.manual_seed(int(os.environ.get("PROBE_SEED", "0")))  # other weight values
network = Network().to(DTYPE)
output = torch.compile(network, backend=compiled)(torch.randn(2, 4, WIDTH, dtype=DTYPE))
output.sum().backward()
example = torch.randn(3, WIDTH, dtype=DTYPE)
for function in (lambda a: [a.tanh()], lambda a: [a.cumsum(-1)], lambda a: [a * CONSTANT], lambda a: [a.tan()]):
    keep(Kind.EAGER, trace(function, [example]))
compiler.close()
json.dump(keys, sys.stdout)
