"""Histograms and shapes are read as they were meant, or refused with the line."""

from __future__ import annotations

import pytest

from client.buckets import choices, parse_shapes, read_histogram
from client.errors import FormatError


@pytest.mark.parametrize(
    "text",
    [
        "length,count\n10,3\n20,1\n",
        "10,3\n20,1",
        '{"length": 10, "count": 2}\n{"length": 20}\n{"length": 10}\n',
        "[10, 3]\n[20, 1]\n",
        "10\n10\n20\n10\n",
        " 10 , 3 \n\n20,1\n",
    ],
)
def test_a_histogram_means_the_same_in_every_form(text):
    assert read_histogram(text, "requests") == {10: 3, 20: 1}


@pytest.mark.parametrize("line", ["x,1", "10,3,4", "10,-1", "0,1", "1.5,2", '{"count": 1}', "[true, 1]", "{", "-3"])
def test_a_line_that_is_no_length_is_named(line):
    with pytest.raises(FormatError, match="line 2 of requests is no length with its count"):
        read_histogram(f"5,1\n{line}\n", "requests")


@pytest.mark.parametrize("text", ["", "length,count\n", "5,0\n"])
def test_a_histogram_without_requests_is_refused(text):
    with pytest.raises(FormatError, match="counts no request"):
        read_histogram(text, "requests")


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("64,128", [(64,), (128,)]),
        ("8x64, 8x128\n", [(8, 64), (8, 128)]),
        ("64\n128\n64\n", [(64,), (128,)]),
        ("[64, [8, 128]]", [(64,), (8, 128)]),
        ('{"schema": 1, "buckets": [64], "waste": 0.1}', [(64,)]),
    ],
)
def test_shapes_are_read_from_the_command_line_and_from_files(text, shapes):
    assert parse_shapes(text, "--shapes") == shapes


@pytest.mark.parametrize("text", ["", "64,x", "1x", '{"lengths": [1]}', "[1.5]", "[[]]", "[-1]", "{"])
def test_shapes_that_mean_nothing_are_refused(text):
    with pytest.raises(FormatError, match="--shapes holds no shapes: expected"):
        parse_shapes(text, "--shapes")


def test_a_histogram_of_one_length_needs_one_bucket():
    (only,) = choices({100: 5}, 64)
    assert (only.buckets, only.real, only.padded) == ((128,), 500, 640)


def test_a_multiple_below_one_is_refused():
    with pytest.raises(ValueError, match="multiples of 0"):
        next(choices({1: 1}, 0))
