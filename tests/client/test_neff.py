"""The NEFF container: whole files pass, everything else is told apart."""

from __future__ import annotations

import gzip

import pytest

from client import neff
from client.errors import NeffError

MEMBERS = {"executable.xla": bytes(range(256)) * 40, "info.json": b"{}"}


@pytest.fixture
def whole() -> bytes:
    return neff.pack(MEMBERS, name="a name", build_version="1.2.3", uuid=b"u" * 16, logical_cores=2)


def test_what_was_packed_comes_back(whole):
    assert neff.unpack(whole) == MEMBERS
    header = neff.validate(whole)
    assert (header.name, header.build_version, header.uuid, header.logical_cores) == ("a name", "1.2.3", b"u" * 16, 2)


def test_the_header_lies_where_the_vendors_tools_look(whole):
    assert whole[8:16] == (1024).to_bytes(8, "little")
    assert whole[16:24] == (len(whole) - 1024).to_bytes(8, "little")
    assert whole[40:45] == b"1.2.3"
    assert whole[204:220] == b"u" * 16
    assert whole[220:226] == b"a name"
    assert whole[552:556] == (2).to_bytes(4, "little")
    assert whole[1024:1026] == b"\x1f\x8b"


def test_a_torn_file_is_never_valid(whole):
    for length in [0, 1, 1023, 1024, 1025, len(whole) // 2, len(whole) - 1]:
        with pytest.raises(NeffError):
            neff.validate(whole[:length])
    with pytest.raises(NeffError, match="holds"):
        neff.validate(whole + b"\0")


def test_a_flipped_bit_in_the_payload_never_changes_what_is_loaded(whole):
    found = 0
    for offset in range(1024, len(whole)):
        damaged = bytearray(whole)
        damaged[offset] ^= 1
        try:
            # a few bits of gzip's own (its time, the padding behind its last block) mean nothing
            assert neff.unpack(bytes(damaged)) == MEMBERS
        except NeffError:
            found += 1
    assert found > (len(whole) - 1024) * 0.9


def test_a_payload_that_is_no_gzip_is_judged_by_size_alone(whole):
    plain = bytearray(whole)
    plain[1024:1026] = b"\0\0"
    assert neff.validate(bytes(plain)).name == "a name"


def test_a_gzip_that_goes_on_after_its_end_is_damaged():
    payload = gzip.compress(b"x" * 100) + b"rubbish"
    header = bytearray(neff.pack({}, name="n", build_version="v", uuid=b"u" * 16)[:1024])
    header[16:24] = len(payload).to_bytes(8, "little")
    with pytest.raises(NeffError, match="gzip"):
        neff.validate(bytes(header) + payload)


def test_a_small_file_cannot_fill_the_memory(whole):
    with pytest.raises(NeffError, match="unpacks to more"):
        neff.unpack(whole, limit=1000)


def test_any_other_file_is_refused_with_a_reason():
    with pytest.raises(NeffError, match="header says"):
        neff.validate(b"\x7fELF" * 1000)
    with pytest.raises(NeffError, match="fewer"):
        neff.validate(b"")
