"""``torch.compile(backend="neuron")``."""
