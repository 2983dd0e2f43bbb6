"""Which operators are dealt with in a special way; imports nothing, as it is part of ``import torch``."""

# Their Python floats may be inputs of their programs: they compute with their scalar and never choose by it. This is
# what the loops of SGD, Adam and their relatives are made of.
LIFTED = frozenset(
    {
        *("add", "sub", "mul", "div", "addcmul", "addcdiv"),
        *(f"_foreach_{name}" for name in ("add", "sub", "mul", "div", "addcmul", "addcdiv")),
    }
)

# Operators on lists of tensors (_foreach_add, _foreach_add_) that become one program for the whole list.
FOREACH = (
    *(
        "abs",
        "add",
        "addcdiv",
        "addcmul",
        "clamp_max",
        "clamp_min",
        "div",
        "exp",
        "expm1",
        "lerp",
        "maximum",
        "minimum",
        "mul",
    ),
    *("neg", "norm", "pow", "reciprocal", "rsqrt", "sign", "sqrt", "sub"),
)

# Parameters that an operator writes though its schema does not say so.
UNDECLARED_WRITES = {
    "aten::native_batch_norm": frozenset({"running_mean", "running_var"}),
    "aten::batch_norm_update_stats": frozenset({"running_mean", "running_var"}),
}
