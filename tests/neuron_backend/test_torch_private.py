"""What we use of torch beyond what it documents is there, and its absence is told where it matters."""

from __future__ import annotations

import pytest

from neuron_backend import torch_private


def test_this_torch_has_every_private_name_that_the_backend_uses() -> None:
    assert torch_private.missing() == []


def test_a_name_that_torch_lost_is_told_with_its_place_and_the_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(torch_private._PLACES, "compile_lock_of_old", ("torch._dynamo.convert_frame", "no_lock"))
    with pytest.raises(ImportError, match=r"has no torch._dynamo.convert_frame.no_lock, .* made for torch 2.13, 2.14"):
        torch_private.compile_lock_of_old  # noqa: B018 - looks it up
    assert torch_private.missing() == ["torch._dynamo.convert_frame.no_lock"]


@pytest.mark.parametrize(
    ("version", "supported"),
    [
        ("2.13.0+cpu", True),
        ("2.14.1", True),
        ("2.15.0a0+git1", True),
        ("2.12.1", False),
        ("2.16.0", False),
        ("3.0", False),
    ],
)
def test_versions_that_the_backend_was_made_for(version: str, supported: bool) -> None:
    assert (torch_private.unsupported(version) is None) is supported
