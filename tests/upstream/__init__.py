"""PyTorch's own tests as judge of the device: what runs, what is skipped, what fails and why."""
