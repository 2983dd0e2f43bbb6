from __future__ import annotations

import os

import pytest
import zstandard
from hypothesis import given, strategies

from client import encoding
from client.errors import FormatError
from tests.client.programs import build


@given(strategies.binary(max_size=5000), strategies.integers(1, 50))
def test_what_is_encoded_comes_back(data: bytes, times: int) -> None:
    assert encoding.decode(encoding.encode(data * times), len(data) * times) == data * times


def test_only_what_gains_a_tenth_is_worth_encoding() -> None:
    assert encoding.worth_encoding(b"a compile log\n" * 1000)
    assert not encoding.worth_encoding(os.urandom(100_000))
    assert not encoding.worth_encoding(b"a" * 100)
    assert not encoding.worth_encoding(b"")


def test_a_neff_with_gzip_inside_is_never_encoded_again() -> None:
    assert not encoding.worth_encoding(build() + bytes(1 << 20))


@pytest.mark.parametrize("off", [-1, 1])
def test_a_frame_of_another_size_than_promised_is_refused(off: int) -> None:
    with pytest.raises(FormatError):
        encoding.decode(encoding.encode(b"a" * 1000), 1000 + off)


def test_a_bomb_is_refused_without_unpacking_it() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(256 << 20))
    assert len(bomb) < 1 << 20
    with pytest.raises(FormatError, match="more"):
        encoding.decode(bomb, 1000)


def test_a_frame_that_asks_for_a_huge_window_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = writer.compress(b"a" * 1000) + writer.flush()
    with pytest.raises(FormatError, match="damaged"):
        encoding.decode(frame, 1000)


@pytest.mark.parametrize("data", [b"", b"no frame", encoding.encode(b"a" * 1000)[:-3]])
def test_what_is_no_whole_frame_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        encoding.decode(data, 1000)


def test_an_output_that_claims_more_than_memory_is_refused() -> None:
    with pytest.raises(FormatError, match="over the"):
        encoding.read_exactly(lambda _: 0, encoding.MAX_SIZE + 1, len)
