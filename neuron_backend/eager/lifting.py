"""Which operators are dealt with in a special way; imports nothing, as it is part of ``import torch``."""

# Parameters whose value is compiled in where torch, and our lowering, have a shortcut for it: x ** 2 is no power.
SHORTCUTS = ("aten::pow.exponent", "aten::_foreach_pow.exponent")

# Parameters that are compiled in always: a model has one value of them, and an input costs each call its time.
CONSTANT = ("eps", "momentum")

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
