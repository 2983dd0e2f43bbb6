"""PyTorch's own operator database (OpInfo) against the lowering and the device; `python -m tests.sweep --help`."""
