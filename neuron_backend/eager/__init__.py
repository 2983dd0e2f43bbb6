"""The eager path: each operator on neuron tensors becomes a compiled program, or runs on the CPU and is counted."""

from neuron_backend.eager.fallbacks import clear_fallback_ops, get_fallback_ops, record_fallback

__all__ = ["clear_fallback_ops", "get_fallback_ops", "record_fallback"]
