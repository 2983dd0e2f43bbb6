"""How requests look, and what is said where the SDK or its settings are missing or wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from client.errors import ConfigurationError
from client.s3.sdk import Connection, ConnectionSettings
from client.s3.url import BucketUrl
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from client.s3.bucket import Bucket
    from tests.support.s3 import S3Server
    from tests.support.s3_faults import FaultProxy

ROOT = Path(__file__).parents[3]


def _python(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS, check=True
    )
    return result.stdout


def test_a_base_install_is_told_what_to_install() -> None:
    out = _python(
        "import sys\n"
        "sys.modules['botocore'] = None\n"
        "from client.errors import ConfigurationError\n"
        "from client.s3.bucket import Bucket\n"
        "from client.s3.url import BucketUrl\n"
        "try:\n    Bucket(BucketUrl.parse('s3://bucket'))\n"
        "except ConfigurationError as error:\n    print(error)\n"
    )
    assert "pip install 'neff-cache[s3]'" in out
    assert len(out.splitlines()) == 1


def test_jobs_without_a_bucket_do_not_load_the_sdk() -> None:
    out = _python(
        "import sys, cache_server.stores.s3\nprint([name for name in sys.modules if name.startswith('boto')])"
    )
    assert out.strip() == "[]"


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_the_endpoint_of_the_environment_is_used(
    variable: str, open_bucket: Callable[..., Bucket], server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, server.endpoint)
    bucket = open_bucket(server.new_url().partition("?")[0])
    assert bucket.create("x", b"x")
    assert server.endpoint in bucket.where


def test_the_endpoint_of_a_profile_is_used(
    open_bucket: Callable[..., Bucket], server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text(
        "[profile lab]\nservices = lab\nregion = eu-central-1\n"
        f"[services lab]\ns3 =\n  endpoint_url = {server.endpoint}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert open_bucket(server.new_url().partition("?")[0]).create("x", b"x")


def test_a_secret_in_the_endpoint_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://key:hunter2@127.0.0.1:9000")
    with pytest.raises(ConfigurationError, match="AWS_ENDPOINT_URL") as caught:
        Connection(BucketUrl("bucket"), ConnectionSettings())
    assert "hunter2" not in str(caught.value)


def test_a_profile_that_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ConfigurationError, match=r"AWS settings cannot be followed: .*nobody"):
        Connection(BucketUrl("bucket"), ConnectionSettings())


def test_amazon_is_asked_by_the_buckets_own_host_name_and_others_by_path() -> None:
    def url(text: str) -> str:
        connection = Connection(BucketUrl.parse(text), ConnectionSettings())
        try:
            return connection.presign("key", 60).partition("?")[0]
        finally:
            connection.close()

    assert url("s3://bucket?region=eu-central-1") == "https://bucket.s3.eu-central-1.amazonaws.com/key"
    assert url("s3://buc.ket?region=eu-central-1") == "https://s3.eu-central-1.amazonaws.com/buc.ket/key"
    assert url("s3://bucket?region=cn-north-1") == "https://bucket.s3.cn-north-1.amazonaws.com.cn/key"
    assert url("s3://bucket?endpoint=https://store.example") == "https://store.example/bucket/key"
    assert url("s3://bucket?endpoint=https://store.example&addressing=virtual") == "https://bucket.store.example/key"


def test_a_machines_own_store_is_not_asked_through_a_proxy(
    open_bucket: Callable[..., Bucket], server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert open_bucket(server.new_url()).create("x", b"x")


def test_no_request_carries_what_compatible_stores_refuse(bucket: Bucket, proxy: FaultProxy) -> None:
    bucket.create("x", b"x")
    upload = bucket.multiparts.begin("y")
    part = bucket.multiparts.put_part("y", upload, 1, b"y")
    bucket.multiparts.complete("y", upload, [part], 1)
    bucket.read("x")
    bucket.remove("x")
    assert len(proxy.seen) == 6
    for seen in proxy.seen:
        unwanted = {name for name in seen.headers if "checksum" in name or "trailer" in name}
        assert unwanted == set()
        assert seen.headers.get("content-encoding", "") != "aws-chunked"
