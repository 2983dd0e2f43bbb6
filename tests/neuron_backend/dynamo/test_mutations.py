"""A compiled graph leaves its inputs as ``aot_eager`` does, whatever operator of torch's database writes to them."""

from __future__ import annotations

import itertools

import pytest

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

_PARTS = 200


@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.share(1)
def test_operators_that_write_leave_all_inputs_as_aot_eager_does(part: int) -> None:
    from tests.sweep.mutating import cases, check  # noqa: PLC0415 - torch's database takes seconds to import

    chosen = list(itertools.product(cases(), (False, True), (True, False)))[part::_PARTS]
    compared, different = 0, []
    for (name, variant), backward, lowered in chosen:
        samples, text = check(name, variant, backward=backward, lowered=lowered)
        compared += samples
        if text:
            different.append(f"{name} {variant}, {backward=}, {lowered=}: {text}")
    assert not different
    assert compared
