"""What stands in an address and is a secret is shown nowhere."""

from __future__ import annotations

import pytest

from client.shown import shown_address
from client.transports import ConfigurationError, open_transport

SECRET = "s3cr3t"
SHOWN = {
    None: "none",
    "http://cache:8080/base": "http://cache:8080/base",
    f"http://cache/?token={SECRET}": "http://cache/?token=…",
    f"http://cache/?{SECRET}": "http://cache/?…",
    f"http://cache/?a=1&{SECRET}={SECRET}": "http://cache/?a=…&…",
    f"http://cache/#{SECRET}": "http://cache/#…",
    f"http://user:{SECRET}@cache:8080/base": "http://cache:8080/base",
    f"http://user:{SECRET}/@{SECRET}@cache": "http://cache",
    f"user:{SECRET}@cache:8080": "cache:8080",
    f"s3://AKIA:{SECRET}@bucket/prefix": "s3://bucket/prefix",
    "s3://bucket/x?endpoint=http://h:1&region=eu": "s3://bucket/x?endpoint=http://h:1&region=eu",
    f"s3://bucket/x?endpoint=http://u:{SECRET}@h:1&token={SECRET}": "s3://bucket/x?endpoint=http://h:1&token=…",
    "/data/a@b?c#d": "/data/a@b?c#d",
    "file:///data/a@b": "file:///data/a@b",
    "~/cache": "~/cache",
}


@pytest.mark.parametrize(("value", "shown"), SHOWN.items())
def test_an_address_is_shown_without_what_may_be_a_secret(value: str | None, shown: str) -> None:
    assert shown_address(value) == shown


@pytest.mark.parametrize("value", [value for value in SHOWN if value and SECRET in value])
def test_an_address_that_cannot_be_followed_is_named_without_its_secret(value: str) -> None:
    said = ""
    try:
        open_transport(value, "default", {}).close()
    except ConfigurationError as error:
        said = str(error)
    assert SECRET not in said
