"""The only module that touches the AWS SDK (botocore, the core of boto3): one request, one answer, errors in our words.

It is imported when a bucket is first used: the base install does not have it, and jobs without a bucket do not wait for
it. Its own retries are off (`client.s3.retry` has them under one deadline), and so are the checksums that newer
releases add to every request as trailers, which several compatible stores refuse.
"""

from __future__ import annotations

import functools
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from client._version import __version__
from client.errors import ConfigurationError
from client.s3.errors import Reason, S3Error, answered
from client.s3.url import check_endpoint
from client.token import is_loopback

if TYPE_CHECKING:
    from types import ModuleType

    from client.s3.url import BucketUrl

_NO_REGION = "us-east-1"
"""Compatible stores have no regions, but a signature needs one; this is what they all take."""

_AMAZON = re.compile(r"\.amazonaws\.com(\.cn)?$")


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Time limits in seconds for one try, and how many connections are kept open."""

    connect_seconds: float = 2.0
    read_seconds: float = 10.0
    connections: int = 32


class _Sdk(NamedTuple):
    sessions: ModuleType
    configs: ModuleType
    errors: ModuleType
    loader: Any
    """Parsed descriptions of the API, most of the time that a client takes to make: kept for the next one."""


@functools.cache
def _sdk() -> _Sdk:
    try:
        import botocore.config  # type: ignore[import-untyped]  # noqa: PLC0415 - not in the base install
        import botocore.exceptions  # type: ignore[import-untyped]  # noqa: PLC0415
        import botocore.loaders  # type: ignore[import-untyped]  # noqa: PLC0415
        import botocore.session  # type: ignore[import-untyped]  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            f"buckets (s3://) need boto3, which cannot be imported here ({error}): pip install 'neff-cache[s3]'"
        ) from error
    return _Sdk(botocore.session, botocore.config, botocore.exceptions, botocore.loaders.create_loader())


class _Answer(dict[str, Any]):
    """An answer of S3, down to its last part. What it should hold and does not is an `S3Error`, never a KeyError.

    A proxy's or an overloaded store's words in the place of an answer are like that, whatever their status.
    """

    fault = ""

    @classmethod
    def of(cls, value: dict[str, Any], fault: str) -> _Answer:
        """Return ``value``; ``fault``: what to say of it if something is missing."""
        answer = cls({name: _within(each, fault) for name, each in value.items()})
        answer.fault = fault
        return answer

    def __missing__(self, name: str) -> Any:
        """Raise `S3Error`."""
        raise S3Error(f"{self.fault} ({name} is missing)", Reason.UNREACHABLE)


def _within(value: Any, fault: str) -> Any:
    if isinstance(value, dict):
        return _Answer.of(value, fault)
    return [_within(each, fault) for each in value] if isinstance(value, list) else value


class Connection:
    """Requests to one bucket. Safe from several threads at once.

    Keys, region and endpoint come from the URL, else from the standard AWS chain (environment, files, roles). `renew`
    walks the whole chain again, because a session reads files and static keys only once.
    """

    def __init__(self, url: BucketUrl, settings: ConnectionSettings) -> None:
        """Raise `ConfigurationError` if boto3 is missing or the AWS settings cannot be followed."""
        self._url = url
        self._settings = settings
        self._lock = threading.Lock()
        self._client = self._connect()
        self.where = f"the bucket {url.bucket!r} at {self._client.meta.endpoint_url}"

    def _connect(self) -> Any:
        sdk = _sdk()
        addressing = self._url.addressing
        try:
            session = sdk.sessions.get_session()
            session.register_component("data_loader", sdk.loader)
            client = self._client_of(session, s3=None if addressing is None else {"addressing_style": addressing})
            endpoint: str = client.meta.endpoint_url
            check_endpoint(endpoint, "the AWS settings (AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, profile)")
            host = urlsplit(endpoint).hostname or ""
            if is_loopback(host):
                # a proxy's own loopback address is another machine
                return self._client_of(session, proxies={}, s3=client.meta.config.s3)
            if _AMAZON.search(host) and "." not in self._url.bucket and not (client.meta.config.s3 or {}):
                # left to itself botocore signs URLs for the global endpoint, which newer regions do not answer at;
                # names with dots are outside of its certificate
                return self._client_of(session, s3={"addressing_style": "virtual"})
        except (sdk.errors.BotoCoreError, ValueError) as error:
            raise ConfigurationError(f"the AWS settings cannot be followed: {error}") from error
        return client

    def _client_of(self, session: Any, **more: Any) -> Any:
        url, settings = self._url, self._settings
        config = _sdk().configs.Config(
            connect_timeout=settings.connect_seconds,
            read_timeout=settings.read_seconds,
            max_pool_connections=settings.connections,
            retries={"total_max_attempts": 1, "mode": "standard"},
            signature_version="s3v4",
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            tcp_keepalive=True,
            user_agent_extra=f"neff-cache/{__version__}",
            **more,
        )
        region = url.region or session.get_config_variable("region") or _NO_REGION
        return session.create_client("s3", region_name=region, endpoint_url=url.endpoint, config=config)

    @property
    def generation(self) -> object:
        """What `renew` wants to know: which credentials are in use now."""
        return self._client

    def renew(self, used: object) -> None:
        """Fetch credentials anew, unless another thread did so since ``used`` was taken from `generation`."""
        with self._lock:
            if self._client is not used:
                return
            try:
                self._client = self._connect()
            except ConfigurationError as error:
                raise S3Error(str(error), Reason.EXPIRED) from error

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Return the answer to one request in this bucket; raises `S3Error`."""
        errors = _sdk().errors
        try:
            answer = getattr(self._client, operation)(Bucket=self._url.bucket, **parameters)
        except errors.ClientError as error:
            raise self._answered(operation, error.response) from error
        except errors.BotoCoreError as error:
            raise self._unanswered(operation, error) from error
        return _Answer.of(answer, f"{self.where} gave no whole answer to {operation}")

    def read(self, body: Any, size: int) -> bytes:
        """Return at most ``size`` bytes of an answer's body, none at its end; raises `S3Error` if it broke off."""
        errors = _sdk().errors
        try:
            data: bytes = body.read(size)
        except (errors.BotoCoreError, OSError) as error:
            raise self._unanswered("get_object", error) from error
        return data

    def presign(self, key: str, seconds: int, content_encoding: str | None = None) -> str:
        """Return a URL that lets anyone GET the object for ``seconds``; raises `S3Error`."""
        errors = _sdk().errors
        parameters = {"Bucket": self._url.bucket, "Key": key}
        if content_encoding is not None:
            parameters["ResponseContentEncoding"] = content_encoding
        try:
            url: str = self._client.generate_presigned_url("get_object", Params=parameters, ExpiresIn=seconds)
        except errors.BotoCoreError as error:
            raise self._unanswered("get_object", error) from error
        return url

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._client.close()

    def _answered(self, operation: str, response: dict[str, Any]) -> S3Error:
        metadata = response.get("ResponseMetadata", {})
        retry_after = metadata.get("HTTPHeaders", {}).get("retry-after", "")
        return answered(
            operation,
            self.where,
            status=int(metadata.get("HTTPStatusCode", 0)),
            code=str(response.get("Error", {}).get("Code", "")),
            retry_after=float(retry_after) if retry_after.isdigit() else None,
        )

    def _unanswered(self, operation: str, error: Exception) -> S3Error:
        errors = _sdk().errors
        kind = type(error).__name__
        if isinstance(error, (errors.NoCredentialsError, errors.PartialCredentialsError)):
            return S3Error(
                f"there are no credentials for {self.where}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
                "a profile, or a role of this machine",
                Reason.DENIED,
            )
        if isinstance(error, (errors.CredentialRetrievalError, errors.TokenRetrievalError, errors.SSOError)):
            return S3Error(f"the credentials for {self.where} could not be fetched ({kind})", Reason.EXPIRED)
        if isinstance(error, (errors.ParamValidationError, errors.ValidationError)):
            return S3Error(f"{operation} cannot be asked of {self.where}: {error}", Reason.REFUSED)
        return S3Error(f"{self.where} gave no whole answer to {operation} ({kind})", Reason.UNREACHABLE)
