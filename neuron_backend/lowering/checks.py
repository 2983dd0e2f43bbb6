"""Checks, of a factorization or of values: they compute nothing, so they leave the graph and come after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

CHECKS = (
    torch.ops.aten._linalg_check_errors.default,  # noqa: SLF001 - torch's name
    torch.ops.aten._assert_async.default,  # noqa: SLF001
    torch.ops.aten._assert_async.msg,  # noqa: SLF001
)
torch.fx.node.has_side_effect(CHECKS[1])  # torch knows that of the others

# AOTAutograd keeps operators with effects in order by a token, an empty tensor that goes in and comes out of each.
_ORDERED = torch.ops.higher_order.with_effects


@dataclass(frozen=True, slots=True)
class Check:
    """One call of ``operator``, without its first argument, the tensor that is checked."""

    operator: torch._ops.OpOverload
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]

    def run(self, operand: torch.Tensor) -> None:
        """Raise torch's own error unless ``operand`` is as it should be."""
        self.operator(operand, *self.arguments, **self.keywords)


def take_checks(graph: GraphModule) -> tuple[Check, ...]:
    """Remove the checks from a graph, in place; their operands become its last outputs."""
    output = graph.graph.output_node()
    checks, operands = [], []
    for node in graph.graph.nodes:
        ordered = node.target is _ORDERED and node.args[1] in CHECKS
        if ordered or node.target in CHECKS:
            operator = node.args[1] if ordered else node.target
            operand, *arguments = node.args[2:] if ordered else node.args
            checks.append(Check(operator, tuple(arguments), dict(node.kwargs)))
            operands.append(operand)
            if ordered:
                _drop_token(node, output)
            graph.graph.erase_node(node)
    if checks:
        results: Any = output.args[0]
        output.args = ((*results, *operands),)
        graph.recompile()
    return tuple(checks)


def _drop_token(node: Node, output: Node) -> None:
    """Let the next check take the token that ``node`` was given; as an output it is None, as torch expects."""
    for part in list(node.users):
        results: Any = output.args[0]
        output.args = (tuple(None if result is part else result for result in results),)
        part.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]  # a node
        part.graph.erase_node(part)
