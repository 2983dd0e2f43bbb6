"""Compilers behind one interface: the real ``neuronx-cc``, and XLA's CPU compiler as a stand-in."""
