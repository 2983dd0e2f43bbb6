"""Model code that none of us wrote, forward and backward, against the CPU; `python -m tests.models --help`."""
