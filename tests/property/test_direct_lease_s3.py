"""The direct lease in a real bucket, under any order of what its contenders do; see `test_direct_lease`."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from client.names import Kind
from client.s3.url import BucketUrl
from client.transports.s3_bucket import SharedBucket
from client.transports.s3_entry import S3Entry
from tests.property.test_direct_lease import Contenders
from tests.support.s3 import seaweedfs, use_credentials

if TYPE_CHECKING:
    from collections.abc import Iterator

_keys = count(1)


class ClockedBucket:
    """A key in a real bucket. Nobody can set when an object was written, so a book of that is kept by our own clock."""

    def __init__(self, bucket: SharedBucket) -> None:
        self.time = 1_000_000.0
        self._entry = S3Entry(bucket, "default", Kind.GRAPH, f"{next(_keys):064x}", until=float("inf"))
        self._changed: dict[str, float] = {}
        self.names, self.remove = self._entry.names, self._entry.remove

    def now(self) -> float:
        return self.time

    def read(self, name: str) -> tuple[bytes, float] | None:
        found = self._entry.read(name)
        return None if found is None else (found[0], self._changed[name])

    def create(self, name: str, data: bytes) -> bool:
        created = self._entry.create(name, data)
        if created:
            self._changed[name] = self.time
        return created

    def replace(self, name: str, data: bytes) -> None:
        self._entry.replace(name, data)
        self._changed[name] = self.time


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedBucket]:
    use_credentials(monkeypatch)
    bucket = SharedBucket(BucketUrl.parse(seaweedfs().new_url()))
    bucket.check_create_only()
    yield bucket
    bucket.close()


@pytest.mark.parametrize("examples", [12, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_a_bucket_never_grants_a_generation_twice(bucket: SharedBucket, examples: int) -> None:
    class InBucket(Contenders):
        def open_store(self) -> ClockedBucket:
            return ClockedBucket(bucket)

        def teardown(self) -> None:
            """Leave what is in the bucket: it goes with the session."""

    run_state_machine_as_test(InBucket, settings=settings(max_examples=examples, stateful_step_count=25, deadline=None))
