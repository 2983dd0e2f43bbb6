from __future__ import annotations

import subprocess
import sys

BOTH = """
import torch
import neuron_backend
values = torch.rand(50, device="neuron").tolist()  # XLA has run, in this process
from scipy import stats
print(stats.kstest(values, "uniform").pvalue > 0, stats.norm.cdf([0.0])[0])
"""


def test_scipy_works_in_a_process_that_uses_the_device() -> None:
    """It looks for jax among the modules that are there, and takes what it finds for one."""
    ended = subprocess.run([sys.executable, "-c", BOTH], capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["True", "0.5"]
