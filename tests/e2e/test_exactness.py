"""Fifty steps of both examples: the device computes what the CPU computes, and the same bits every time."""

from __future__ import annotations

import pytest

from tests.support.jobs import job_environment, run_ranks

STEPS = 50

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


@pytest.mark.parametrize("example", ["train_digits", "train_gpt"])
def test_a_training_run_follows_the_cpus_losses_and_repeats_to_the_bit(example, tmp_path):
    def losses(name: str, device: str) -> list[float]:
        environment = job_environment(tmp_path / name, "")
        return run_ranks(example, [environment], tmp_path / f"{name}-out", steps=STEPS, device=device)[0].losses

    reference, first, second = losses("cpu", "cpu"), losses("one", "neuron"), losses("two", "neuron")
    assert first == second
    worst = max(abs(ours - cpu) / max(1, cpu) for ours, cpu in zip(first, reference, strict=True))
    print(f"{example}: largest difference of the loss {worst:.1e}")  # noqa: T201 - the figure that is quoted
    assert worst <= 1e-4
