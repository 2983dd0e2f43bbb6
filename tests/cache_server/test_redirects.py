"""Large outputs straight from the bucket: the server says where, for a while, and to whom it would have sent them."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from client import Cache, Compiled, CompilerIdentity, Ir, KeyDocument, Kind, neff
from client.layout import entry_folder
from client.transports.redirects import STAY
from client.wire import Entry
from tests.cache_server.harness import build, problem
from tests.fakes.waiting import HANG_SECONDS
from tests.support.jobs import job_environment
from tests.support.s3 import seaweedfs, use_credentials
from tests.support.servers import running_server
from tests.support.stored import FilesInBucket

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cache_server.harness import InProcess

pytestmark = pytest.mark.once

PLAIN = bytes(range(256)) * 40
PACKED = zstandard.compress(PLAIN)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> str:
    use_credentials(monkeypatch)
    return seaweedfs().new_url()


@pytest.fixture
def server(make_server: Callable[..., InProcess], bucket: str) -> InProcess:
    return make_server(store=bucket, redirect_bytes=100)


def fetch(location: str) -> tuple[bytes, Any]:
    """Get the address as anybody would: without a token."""
    with urllib.request.urlopen(location, timeout=HANG_SECONDS) as answer:
        return answer.read(), answer.headers


def test_a_redirect_leads_to_the_bytes_and_carries_the_entry(server: InProcess) -> None:
    built = build(neff=PLAIN)
    server.publish(built)
    answer = server.call("GET", built.artifact)
    assert answer.status_code == 307
    assert answer.content == b""
    assert answer.headers["cache-control"] == "no-store"
    assert Entry.from_header(answer.headers["neff-entry"]).output() == built.entry.output()
    assert fetch(answer.headers["location"])[0] == PLAIN
    # an output by its digest as well, where there is no entry to carry
    answer = server.call("GET", built.blob())
    assert answer.status_code == 307
    assert fetch(answer.headers["location"])[0] == PLAIN


def test_what_the_bucket_could_not_answer_rightly_is_answered_here(server: InProcess) -> None:
    built, small = build("a", PLAIN), build("b", b"x" * 99)
    for one in (built, small):
        server.publish(one)
    tag = f'"{built.entry.outputs[0].sha256}"'
    assert server.call("HEAD", built.artifact).status_code == 200
    assert server.call("GET", built.artifact, headers={"If-None-Match": tag}).status_code == 304
    assert server.call("GET", built.artifact, headers={"If-Match": tag}).content == PLAIN
    assert server.call("GET", small.artifact).content == b"x" * 99
    # how a client asks that may not follow us
    assert server.call("GET", built.artifact, headers=STAY).content == PLAIN
    assert server.call("GET", built.blob(), headers=STAY).content == PLAIN


def test_compressed_outputs_are_redirected_for_callers_who_can_read_them(server: InProcess) -> None:
    built = build(neff=PLAIN * 20, packed=zstandard.compress(PLAIN * 20))
    server.publish(built)
    answer = server.call("GET", built.artifact, headers={"Accept-Encoding": "zstd"})
    assert answer.status_code == 307
    data, headers = fetch(answer.headers["location"])
    assert data == built.stored["model.neff"]
    assert headers["Content-Encoding"] == "zstd"
    for asked in ({"Accept-Encoding": "identity"}, {"Accept-Encoding": "zstd", "Range": "bytes=0-99"}):
        answer = server.call("GET", built.artifact, headers=asked)
        assert answer.status_code in {200, 206}
        assert (PLAIN * 20).startswith(answer.content)


def test_nobody_is_sent_to_an_output_that_is_gone(server: InProcess, bucket: str) -> None:
    built = build(neff=PLAIN)
    server.publish(built)
    files = FilesInBucket(bucket)
    address = built.address
    files.remove(f"{entry_folder(*address)}/{built.entry.outputs[0].sha256}")
    files.close()
    assert problem(server.call("GET", built.artifact)) == (404, "not_found")


def test_an_address_is_no_key_to_the_bucket(server: InProcess) -> None:
    built = build(neff=PLAIN)
    server.publish(built)
    location = server.call("GET", built.artifact).headers["location"]
    assert problem(server.call("GET", built.artifact, token="wrong")) == (401, "unauthorized")
    other = location.replace(built.entry.outputs[0].sha256, "entry.json")
    assert other != location
    with pytest.raises(urllib.error.HTTPError, match="403"):
        fetch(other)


def test_by_default_and_on_a_local_disk_nobody_is_redirected(
    make_server: Callable[..., InProcess], bucket: str, tmp_path: Path
) -> None:
    built = build(neff=PLAIN)
    for number, settings in enumerate(({"store": bucket}, {"redirect_bytes": 0})):
        server = make_server(folder=tmp_path / str(number), **settings)
        server.publish(built)
        assert server.call("GET", built.artifact).content == PLAIN


def test_a_job_follows_to_the_bucket(bucket: str, tmp_path: Path) -> None:
    document = KeyDocument(
        Kind.GRAPH, Ir("stablehlo", "vhlo", "1.0.0", "0" * 64), CompilerIdentity("test", "1"), "t", 1
    )

    def compile_one() -> Compiled:
        data = neff.pack({"code": os.urandom(5000)}, name="n", build_version="1", uuid=os.urandom(16))
        return Compiled({"model.neff": data}, 1.0)

    found = []
    with running_server(
        tmp_path / "server", "--store", bucket, environment={"NEFF_CACHE_REDIRECT_BYTES": "0"}
    ) as server:
        for node in ("a", "b"):
            cache = Cache.from_environment(job_environment(tmp_path / node, server.url, server.config))
            found.append(cache.get_or_compile(document, compile_one))
            cache.close()
    assert [artifact.source for artifact in found] == ["compile", "remote"]
    assert found[0].neff == found[1].neff
