"""A child process of the table: steps of the architectures named on standard input."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import neuron_backend  # noqa: F401 - says so if there is no device library
from tests.models.checking import check
from tests.models.outcome import Figures
from tests.sweep.answering import answer

if __name__ == "__main__":
    answer(check, Figures)
