"""Products of matrices whose rows or columns belong to groups of their own length, as a mixture of experts has them."""

from __future__ import annotations

import torch

from neuron_backend.lowering.rewriting import rewrites


@rewrites("aten._grouped_mm.default")
def grouped_product(
    left: torch.Tensor,
    right: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Multiply group by group; ``offs`` are the ends of the groups along the axis that both or one operand lacks.

    Shapes are fixed, lengths of groups are not: each group sees the whole axis, with zeros where it is another's. That
    is as many products as there are groups. What belongs to no group is zero; torch leaves it as the memory was.
    """
    if bias is not None:
        raise NotImplementedError("a bias of grouped products, which no kernel of torch has either")
    if offs is None:
        product = torch.bmm(left, right)
    elif left.dim() == right.dim() == 2:  # noqa: PLR2004 - matrices: the groups are of the axis that is summed
        member = _members(offs, right.shape[0])
        product = torch.bmm(torch.where(member.unsqueeze(1), left, 0), torch.where(member.unsqueeze(2), right, 0))
    elif right.dim() == 3:  # noqa: PLR2004 - rows of the left, each by the matrix of its group
        member = _members(offs, left.shape[0])
        product = torch.bmm(torch.where(member.unsqueeze(2), left, 0), right).sum(0)
    else:
        member = _members(offs, right.shape[1])
        product = torch.bmm(left, torch.where(member.unsqueeze(1), right, 0)).sum(0)
    return product if out_dtype is None else product.to(out_dtype)


def _members(ends: torch.Tensor, size: int) -> torch.Tensor:
    """Return ``[groups, size]``: whether a position lies between the group's end and that of the one before."""
    position = torch.arange(size, device=ends.device)
    before = position < ends.unsqueeze(1)
    return before & ~torch.cat([torch.zeros_like(before[:1]), before[:-1]])
