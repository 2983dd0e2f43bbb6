"""What a user asks of the backend is done, or refused with the reason; a failure says where it came from."""

from __future__ import annotations

import warnings

import pytest
import torch

import neuron_backend
from tests.support.unlowered import NAME, unlowered


def compiled(function, **options):
    return torch.compile(function, backend="neuron", **options)


def unsupported(x):
    y = x * 2
    return unlowered(y)


class OnlyBackwards(torch.autograd.Function):
    """Its backward needs an operator that has no lowering, its forward does not."""

    @staticmethod
    def forward(ctx, value):
        ctx.save_for_backward(value)
        return value * 2

    @staticmethod
    def backward(ctx, gradient):
        (value,) = ctx.saved_tensors
        return gradient * unlowered(value)


def marked(x, *dimensions):
    for dimension in dimensions:
        torch._dynamo.mark_dynamic(x, dimension)
    return x


def test_a_dimension_that_is_marked_dynamic_is_refused_with_the_reason():
    with pytest.raises(
        Exception, match=r"mark_dynamic is not supported on neuron \(dimension 1 of input .*fixed shapes"
    ):
        compiled(lambda x: x + 1)(marked(torch.ones(3, 4, device="neuron"), 1))


def test_sizes_that_changed_by_themselves_are_no_reason_to_refuse():
    double = compiled(lambda x: x * 2)
    for size in (2, 3, 4):
        assert double(torch.ones(size, device="neuron")).tolist() == [2] * size


def test_beyond_the_limit_of_recompiles_the_result_is_right_and_one_warning_says_so():
    def function(x):
        return x * 3 + x.sum()

    triple = compiled(function)
    with torch._dynamo.config.patch(recompile_limit=2), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for size in range(2, 8):
            assert triple(torch.ones(size, device="neuron")).tolist() == function(torch.ones(size)).tolist()
    said = [str(each.message) for each in caught if "recompile_limit (2) is reached" in str(each.message)]
    assert len(said) == 1
    assert "inputs of shapes [5]" in said[0]


def test_a_limit_that_must_not_be_passed_is_an_error():
    double = compiled(lambda x: x * 2)
    with torch._dynamo.config.patch(recompile_limit=2, fail_on_recompile_limit_hit=True):
        for size in (2, 3, 4):
            double(torch.ones(size, device="neuron"))
        with pytest.raises(RuntimeError, match=r"recompile_limit \(2\) is reached"):
            double(torch.ones(5, device="neuron"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"speed": 11}, r"knows no options \['speed'\].*it knows 'fallback'"),
        ({"fallback": "no"}, "'fallback' of backend neuron is 'no': expected True or False"),
    ],
)
def test_an_option_that_means_nothing_is_refused_in_one_sentence(options, reason):
    with pytest.raises(Exception, match=reason):
        compiled(lambda x: x + 1, options=options)(torch.ones(3, device="neuron"))


def test_a_mode_that_nobody_knows_is_refused():
    with pytest.raises(Exception, match="knows no mode 'warp'"):
        compiled(lambda x: x + 1, mode="warp")(torch.ones(3, device="neuron"))


def test_the_default_mode_is_taken_without_a_word():
    assert compiled(lambda x: x + 1, mode="default")(torch.ones(2, device="neuron")).tolist() == [2, 2]


@pytest.mark.parametrize(
    ("setting", "options", "raises"),
    [("1", {}, False), ("0", {}, True), ("1", {"fallback": False}, True), ("0", {"fallback": True}, False)],
)
def test_fallback_is_the_options_to_say_then_the_settings(monkeypatch, setting, options, raises):
    monkeypatch.setenv("NEURON_BACKEND_GRAPH_FALLBACK", setting)
    x = torch.randn(3, 3)
    call = compiled(unsupported, options=options) if options else compiled(unsupported)
    if raises:
        with pytest.raises(Exception, match=NAME):
            call(x.to("neuron"))
    else:
        with pytest.warns(UserWarning, match="its graph runs operator by operator"):
            assert torch.allclose(call(x.to("neuron")).cpu(), unsupported(x), rtol=1e-4)


def test_a_graph_that_cannot_be_lowered_names_operator_graph_and_source_line():
    with pytest.raises(
        Exception,
        match=r"operator neff_cache_tests\.unlowered\.default of the forward graph 0/0 cannot be lowered to .*"
        r"test_options\.py:\d+: return unlowered\(y\)",
    ):
        compiled(unsupported, options={"fallback": False})(torch.randn(3, 3).to("neuron"))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_backward_graph_that_cannot_be_lowered_says_that_it_is_that():
    x = torch.randn(3, 3).to("neuron").requires_grad_()
    result = compiled(OnlyBackwards.apply, options={"fallback": False})(x)
    with pytest.raises(Exception, match=r"operator neff_cache_tests\.unlowered\.default of the backward graph 0/0"):
        result.sum().backward()


def test_in_a_graph_that_falls_back_only_what_has_no_lowering_is_listed():
    with pytest.warns(UserWarning, match="its graph runs operator by operator"):
        compiled(lambda x: unlowered(x.exp() * 2))(torch.randn(3, 3).to("neuron"))
    assert set(neuron_backend.get_fallback_ops()) == {NAME}
