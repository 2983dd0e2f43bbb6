"""Train an MLP on scikit-learn's handwritten digits, operator by operator (eager) on ``device="neuron"``.

Every operator is compiled once for its shapes and dtypes, and comes out of the shared cache ever after.
"""

from __future__ import annotations

import torch
from common import arguments, finish, show
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import neuron_backend  # noqa: F401 - first: says what is missing where the device is not there

BATCH = 128


def main() -> None:
    """Train for ``--steps`` batches of 128 images of 8 x 8 pixels."""
    options = arguments("Train an MLP on handwritten digits, eagerly.")
    torch.manual_seed(options.seed)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target, dtype=torch.int64)
    # everything random is drawn on the host, so that all devices train on the same numbers
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    batches = [torch.randperm(len(images))[:BATCH] for _ in range(options.steps)]

    model = model.to(options.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step, chosen in enumerate(batches):
        inputs, targets = images[chosen].to(options.device), labels[chosen].to(options.device)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        show(step, losses[-1], options)
    finish("train_digits", losses, options)


if __name__ == "__main__":
    main()
