"""A file like PyTorch's own, for the runner's tests: each test in it ends in another way on the device."""

import os
import signal
import time
import unittest

import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests, onlyCUDA
from torch.testing._internal.common_utils import TestCase, a_name_that_no_torch_has


def raise_below():
    raise NotImplementedError("below")


class TestJudged(TestCase):
    def setUp(self):
        super(self.__class__, self).setUp()

    def test_right(self, device):
        self.assertEqual(torch.ones(2, device=device).device.type, torch.device(device).type)

    def test_wrong(self, device):
        self.assertEqual(torch.tensor([1.0]), torch.tensor([1.0 if device == "cpu" else 2.0]))

    def test_error(self, device):
        if device != "cpu":
            raise RuntimeError("this fails")

    def test_in_a_sample(self, device):
        try:
            if device != "cpu":
                raise_below()
        except NotImplementedError as error:
            raise RuntimeError("Caused by sample input at index 3") from error

    def test_crash(self, device):
        if device != "cpu":
            os.kill(os.getpid(), signal.SIGSEGV)

    def test_slow(self, device):
        if device != "cpu":
            time.sleep(600)

    def test_hang(self, device):
        if device != "cpu":
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            time.sleep(600)

    def test_that_hears_no_signal(self, device):
        if device != "cpu":
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            sum(range(10**12))

    @unittest.skip("is slow")
    def test_skipped(self, device):
        raise AssertionError

    @onlyCUDA
    def test_of_cuda(self, device):
        raise AssertionError

    def test_skipped_on_the_device(self, device):
        if device != "cpu":
            raise unittest.SkipTest("requires CUDA")

    def test_that_fails_on_the_cpu_too(self, device):
        raise AssertionError("everywhere")

    @a_name_that_no_torch_has
    def test_under_a_stub(self, device):
        pass


class TestForTheCPUByName(TestCase):
    def test_named(self, device):
        pass


class TestForCUDAByName(TestCase):
    def test_named(self, device):
        pass


class TestPlain(TestCase):
    def test_of_the_default_device(self):
        self.assertEqual(torch.ones(2).device.type, "cpu")

    def test_of_a_compiled_graph(self):
        self.assertEqual(torch.compile(lambda x: x + 1)(torch.ones(2)), torch.full((2,), 2.0))


instantiate_device_type_tests(TestJudged, globals())
instantiate_device_type_tests(TestForTheCPUByName, globals(), only_for="cpu")
instantiate_device_type_tests(TestForCUDAByName, globals(), only_for=("cuda",))
