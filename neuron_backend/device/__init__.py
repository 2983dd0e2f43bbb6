"""Device ``neuron``: PyTorch's PrivateUse1 slot, filled by a small C++ library and the module ``torch.neuron``."""
