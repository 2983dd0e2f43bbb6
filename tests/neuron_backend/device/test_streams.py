"""Streams and events keep what they promise: order, completion, and the time between."""

from __future__ import annotations

import time

import pytest
import torch


def test_work_on_a_stream_is_seen_by_whoever_waits_for_it() -> None:
    stream, event = torch.neuron.Stream(), torch.neuron.Event()
    x = torch.zeros(4, device="neuron")
    with torch.neuron.stream(stream):
        x.add_(3)
        event.record()
    torch.neuron.current_stream().wait_event(event)
    torch.neuron.current_stream().wait_stream(stream)
    x.record_stream(stream)
    assert torch.equal(x.cpu(), torch.full((4,), 3.0))
    stream.synchronize()
    assert stream.query()
    assert event.query()
    assert torch.neuron.default_stream() == torch.neuron.current_stream()
    torch.neuron.set_stream(stream)
    with torch.neuron.stream(None):
        torch.neuron.synchronize()


def test_the_time_between_events_is_the_time_that_passed() -> None:
    first, second = torch.neuron.Event(enable_timing=True), torch.neuron.Event(enable_timing=True)
    began = time.monotonic()
    first.record()
    time.sleep(0.02)
    second.record()
    second.synchronize()
    most = (time.monotonic() - began) * 1000
    assert 20 <= first.elapsed_time(second) <= most


def test_events_without_times_are_refused() -> None:
    recorded = torch.neuron.Event(enable_timing=True)
    recorded.record()
    with pytest.raises(ValueError, match="must be recorded"):
        torch.neuron.Event(enable_timing=True).elapsed_time(recorded)
    with pytest.raises(ValueError, match="enable_timing"):
        torch.neuron.Event().elapsed_time(recorded)


def test_a_stream_of_another_device_is_refused() -> None:
    with pytest.raises(RuntimeError, match="expected a stream of 'neuron'"):
        torch.ones(1, device="neuron").record_stream(torch.Stream(device="cpu"))
