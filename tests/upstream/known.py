"""Tests whose failure is known and understood, each with the reason; they stand in the page and fail nothing."""

from __future__ import annotations

import re

_REASONS = (
    (
        r"EmbeddingBag_per_sample_weights.*float16",
        "the test sums in float16 what the device sums in float32: one unit in the last place",
    ),
    (
        r"test_scatter_(reduce_prod|_reductions)_cpu_complex",
        "the test wants products of complex numbers bit for bit; XLA fuses their multiplications and additions",
    ),
    (r"test_vmap_chunksize.*randomness", "torch sets only the CPU's generator back between chunks"),
    (
        r"test_non_standard_bool_values",
        "a byte that is neither 0 nor 1, viewed as a boolean, is computed with as it is: not mended",
    ),
    (r"TestDistributions.test_cauchy", "it draws the same numbers again by setting back the CPU's generator alone"),
    (r"test_new_spectral_norm_value", "it depends on the random numbers with which it begins, which are not the CPU's"),
    (
        r"test_fused_sdp_choice|conv_backend",
        "it asks which of the CPU's kernels would run",
    ),
)


def why(name: str) -> str:
    """Return why the failure of a test is no news; empty if it would be."""
    return next((reason for pattern, reason in _REASONS if re.search(pattern, name)), "")
