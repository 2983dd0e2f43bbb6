"""Where a bucket is: ``s3://bucket[/prefix][?endpoint=https://host:port&region=…&addressing=path|virtual]``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from client.errors import ConfigurationError

SCHEME = "s3"

_EXPECTED = "expected s3://bucket/prefix, and after ? any of endpoint=https://host:port, region=NAME, addressing=path"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_PREFIX_PART = re.compile(r"[A-Za-z0-9!_.*'() =@-]{1,255}")
_REGION = re.compile(r"[A-Za-z0-9-]{1,64}")
_SETTINGS = frozenset({"endpoint", "region", "addressing"})
_ADDRESSING = frozenset({"path", "virtual"})


def check_endpoint(endpoint: str, said_by: str) -> None:
    """Raise `ConfigurationError` unless ``endpoint`` is ``http(s)://host[:port][/path]`` and nothing more.

    A user or password there would be shown wherever the endpoint is; S3 takes keys in other ways.
    """
    try:
        parts = urlsplit(endpoint)
        is_server = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_server = False
    if not is_server:
        raise ConfigurationError(f"the S3 endpoint in {said_by} is no http(s)://host[:port]")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigurationError(
            f"the S3 endpoint in {said_by} holds more than http(s)://host[:port]: "
            "keys belong into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the AWS credentials file"
        )


@dataclass(frozen=True, slots=True)
class BucketUrl:
    """A bucket and the prefix in it, ``""`` or ``a/b`` without slashes around. None: what the AWS settings say."""

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    addressing: str | None = None

    @classmethod
    def parse(cls, url: str) -> BucketUrl:
        """Return what ``url`` names; raises `ConfigurationError`, which never repeats all of it (it may hold keys)."""
        try:
            parts = urlsplit(url)
        except ValueError:
            raise ConfigurationError(f"the bucket's URL cannot be read: {_EXPECTED}") from None
        if parts.scheme != SCHEME or parts.fragment:
            raise ConfigurationError(f"this is no bucket's URL: {_EXPECTED}")
        if "@" in parts.netloc:
            raise ConfigurationError(
                "the bucket's URL holds keys: put them into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
                "or the AWS credentials file"
            )
        if not _BUCKET.fullmatch(parts.netloc):
            raise ConfigurationError(f"{parts.netloc!r} is no bucket's name: {_EXPECTED}")
        prefix = unquote(parts.path).strip("/")
        for part in prefix.split("/") if prefix else ():
            if not _PREFIX_PART.fullmatch(part) or part in {".", ".."}:
                raise ConfigurationError(f"{part!r} cannot be a part of a prefix in a bucket: {_EXPECTED}")
        return cls(parts.netloc, prefix, **_settings(parts.query))

    def __str__(self) -> str:
        """Return the URL, endpoint included; there is never a secret in it."""
        settings = {"endpoint": self.endpoint, "region": self.region, "addressing": self.addressing}
        query = urlencode({name: value for name, value in settings.items() if value is not None}, safe=":/")
        path = f"/{self.prefix}" if self.prefix else ""
        return f"{SCHEME}://{self.bucket}{path}" + (f"?{query}" if query else "")


def _settings(query: str) -> dict[str, str]:
    settings: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _SETTINGS or name in settings:
            shown = name if re.fullmatch(r"[A-Za-z_-]{1,32}", name) else "something else"
            raise ConfigurationError(f"the bucket's URL says {shown} where it should not: {_EXPECTED}")
        settings[name] = value
    if "endpoint" in settings:
        check_endpoint(settings["endpoint"], "the bucket's URL")
    if "region" in settings and not _REGION.fullmatch(settings["region"]):
        raise ConfigurationError("the region in the bucket's URL is no name of a region, such as eu-central-1")
    if settings.get("addressing", "path") not in _ADDRESSING:
        raise ConfigurationError("addressing in the bucket's URL is neither path nor virtual")
    return settings
