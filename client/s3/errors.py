"""What S3 answers, sorted by what can be done about it; one sentence each, which never holds a secret."""

from __future__ import annotations

from enum import Enum

from client.errors import NeffCacheError


class Reason(Enum):
    """Why a request failed. The value: whether the same request may succeed a little later."""

    BUSY = ("busy", True)
    """Throttled, or in the way of another request."""
    UNREACHABLE = ("unreachable", True)
    """No connection, no whole answer, an error inside the store: the request may have taken effect."""
    EXPIRED = ("expired", False)
    """The credentials ran out: new ones are fetched, once."""
    DENIED = ("denied", False)
    NO_BUCKET = ("no_bucket", False)
    ABSENT = ("absent", False)
    """No such object, or no such multipart upload."""
    EXISTS = ("exists", False)
    """The condition of the request does not hold: the name is taken, or the object is another one by now."""
    FULL = ("full", False)
    CLOCK = ("clock", False)
    REFUSED = ("refused", False)

    @property
    def is_passing(self) -> bool:
        """Whether trying again is worth it."""
        return self.value[1]


class S3Error(NeffCacheError):
    """A request to the bucket failed. ``status`` is 0 if there was no answer, ``code`` is S3's word for it or empty."""

    def __init__(
        self, message: str, reason: Reason, *, status: int = 0, code: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status
        self.code = code
        self.retry_after = retry_after


_BY_CODE = {
    **dict.fromkeys(
        (
            "SlowDown",
            "SlowDownRead",
            "SlowDownWrite",
            "Throttling",
            "ThrottlingException",
            "RequestLimitExceeded",
            "TooManyRequests",
            "BandwidthLimitExceeded",
            "ServiceUnavailable",
            "ConditionalRequestConflict",
            "OperationAborted",
        ),
        Reason.BUSY,
    ),
    # BadDigest and its like: the body was damaged on its way; IncompleteBody, RequestTimeout: it did not all arrive
    **dict.fromkeys(
        ("InternalError", "RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch"),
        Reason.UNREACHABLE,
    ),
    # a key that is not known (any more) may have been replaced since it was read
    **dict.fromkeys(
        ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken", "InvalidAccessKeyId"),
        Reason.EXPIRED,
    ),
    "NoSuchBucket": Reason.NO_BUCKET,
    **dict.fromkeys(("NoSuchKey", "NoSuchUpload", "NoSuchVersion"), Reason.ABSENT),
    "PreconditionFailed": Reason.EXISTS,
    **dict.fromkeys(("QuotaExceeded", "XMinioStorageFull", "InsufficientStorage"), Reason.FULL),
    "RequestTimeTooSkewed": Reason.CLOCK,
}

_BY_STATUS = {
    403: Reason.DENIED,
    404: Reason.ABSENT,
    408: Reason.UNREACHABLE,
    409: Reason.BUSY,
    412: Reason.EXISTS,
    429: Reason.BUSY,
    500: Reason.UNREACHABLE,
    502: Reason.UNREACHABLE,
    503: Reason.BUSY,
    504: Reason.UNREACHABLE,
    507: Reason.FULL,
}

RIGHTS = {
    "get_object": "s3:GetObject",
    "head_object": "s3:GetObject",
    "put_object": "s3:PutObject",
    "delete_object": "s3:DeleteObject",
    "copy_object": "s3:GetObject and s3:PutObject",
    "list_objects_v2": "s3:ListBucket",
    "create_multipart_upload": "s3:PutObject",
    "upload_part": "s3:PutObject",
    "upload_part_copy": "s3:GetObject and s3:PutObject",
    "complete_multipart_upload": "s3:PutObject",
    "abort_multipart_upload": "s3:AbortMultipartUpload",
    "list_multipart_uploads": "s3:ListBucketMultipartUploads",
}
"""Operation -> the right it needs (Amazon S3 User Guide, "Required permissions for Amazon S3 API operations")."""


_SENTENCES = {
    Reason.BUSY: "{where} is throttled or busy ({shown} to {operation})",
    Reason.UNREACHABLE: "{where} failed at {operation} ({shown})",
    Reason.EXPIRED: "{where} does not take the credentials (any more) ({shown}): renew the AWS key or token",
    Reason.DENIED: "{where} refuses {operation} ({shown}): grant {right} on the bucket and its objects",
    Reason.NO_BUCKET: "{where} does not exist: create it, or correct its name, region or endpoint",
    Reason.ABSENT: "{where} has no such object ({shown} to {operation})",
    Reason.EXISTS: "{where} holds another object of that name ({shown} to {operation})",
    Reason.FULL: "{where} has no room ({shown} to {operation})",
    Reason.CLOCK: "{where} refuses this machine's clock ({shown}): S3 allows 15 minutes off, so set the time (NTP)",
    Reason.REFUSED: "{where} refuses {operation} ({shown})",
}
_OTHER_REGION = "{where} is in another region ({shown}): set it with ?region=NAME or AWS_DEFAULT_REGION"
_BY_CODE_ALONE = {
    "SignatureDoesNotMatch": "{where} refuses the signature ({shown}): check secret key, region and endpoint",
    "PermanentRedirect": _OTHER_REGION,
    "AuthorizationHeaderMalformed": _OTHER_REGION,
}


def answered(operation: str, where: str, *, status: int, code: str, retry_after: float | None = None) -> S3Error:
    """Return the error for an answer of S3 to ``operation`` in the bucket that ``where`` describes."""
    # HEAD has no body, so there the status stands in for the code
    code = "" if code.isdigit() else code
    reason = _BY_CODE.get(code) or _BY_STATUS.get(status, Reason.REFUSED)
    sentence = _BY_CODE_ALONE.get(code) or _SENTENCES[reason]
    text = sentence.format(
        where=where, operation=operation, shown=f"{status} {code}".strip(), right=RIGHTS.get(operation, operation)
    )
    return S3Error(text, reason, status=status, code=code, retry_after=retry_after)
