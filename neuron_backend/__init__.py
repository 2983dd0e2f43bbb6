"""PyTorch on Neuron through the shared cache: device ``neuron`` and ``torch.compile(backend="neuron")``."""
