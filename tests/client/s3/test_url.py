"""What a bucket's URL may say, and that nothing secret in it is repeated."""

from __future__ import annotations

import pytest

from client.errors import ConfigurationError
from client.s3.url import BucketUrl

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket", BucketUrl("bucket")),
        ("s3://bucket/", BucketUrl("bucket")),
        ("s3://bucket/a/b/", BucketUrl("bucket", "a/b")),
        ("s3://b.u-c.ket/team%20a", BucketUrl("b.u-c.ket", "team a")),
        (
            "s3://bucket/p?endpoint=https://host:9000&region=eu-central-1&addressing=virtual",
            BucketUrl("bucket", "p", "https://host:9000", "eu-central-1", "virtual"),
        ),
        ("s3://bucket?endpoint=http%3A%2F%2F[::1]:9000", BucketUrl("bucket", "", "http://[::1]:9000")),
    ],
)
def test_a_url_names_one_place(url: str, expected: BucketUrl) -> None:
    parsed = BucketUrl.parse(url)
    assert parsed == expected
    assert BucketUrl.parse(str(parsed).replace(" ", "%20")) == expected


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("https://bucket/p", "no bucket's URL"),
        ("s3:///p", "no bucket's name"),
        ("s3://b/p", "no bucket's name"),
        ("s3://bucket:9000/p", "no bucket's name"),
        (f"s3://key:{SECRET}@bucket/p", "AWS_SECRET_ACCESS_KEY"),
        ("s3://bucket/a//b", "part of a prefix"),
        ("s3://bucket/../b", "part of a prefix"),
        ("s3://bucket/a%0ab", "part of a prefix"),
        ("s3://bucket/a?b#c", "no bucket's URL"),
        (f"s3://bucket?secret={SECRET}", "says secret where it should not"),
        (f"s3://bucket?{SECRET}%00=1", "something else"),
        ("s3://bucket?region=a&region=b", "says region where it should not"),
        ("s3://bucket?region=eu/1", "no name of a region"),
        ("s3://bucket?addressing=dns", "neither path nor virtual"),
        ("s3://bucket?endpoint=host:9000", r"no http\(s\)://host"),
        ("s3://bucket?endpoint=https://host:99999", r"no http\(s\)://host"),
        (f"s3://bucket?endpoint=https://key:{SECRET}@host", "holds more than"),
        (f"s3://bucket?endpoint=https://host?{SECRET}", "holds more than"),
        ("s3://[bucket", "cannot be read"),
    ],
)
def test_a_url_that_cannot_be_followed_is_explained_without_its_secrets(url: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence) as caught:
        BucketUrl.parse(url)
    assert SECRET not in str(caught.value)
