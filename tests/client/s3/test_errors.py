"""Every answer has one meaning."""

from __future__ import annotations

import pytest

from client.s3.errors import RIGHTS, Reason, answered

ANSWERS = [
    (403, "AccessDenied", Reason.DENIED),
    (403, "SignatureDoesNotMatch", Reason.DENIED),
    (403, "", Reason.DENIED),
    (403, "403", Reason.DENIED),
    (403, "InvalidAccessKeyId", Reason.EXPIRED),
    (400, "ExpiredToken", Reason.EXPIRED),
    (403, "RequestTimeTooSkewed", Reason.CLOCK),
    (404, "NoSuchKey", Reason.ABSENT),
    (404, "404", Reason.ABSENT),
    (404, "NoSuchUpload", Reason.ABSENT),
    (404, "NoSuchBucket", Reason.NO_BUCKET),
    (412, "PreconditionFailed", Reason.EXISTS),
    (409, "ConditionalRequestConflict", Reason.BUSY),
    (429, "", Reason.BUSY),
    (503, "SlowDown", Reason.BUSY),
    (500, "SlowDown", Reason.BUSY),
    (500, "InternalError", Reason.UNREACHABLE),
    (400, "RequestTimeout", Reason.UNREACHABLE),
    (400, "BadDigest", Reason.UNREACHABLE),
    (507, "", Reason.FULL),
    (400, "InvalidArgument", Reason.REFUSED),
    (501, "NotImplemented", Reason.REFUSED),
    (301, "PermanentRedirect", Reason.REFUSED),
    (400, "AuthorizationHeaderMalformed", Reason.REFUSED),
]


@pytest.mark.parametrize(("status", "code", "reason"), ANSWERS)
def test_an_answer_means_one_thing(status: int, code: str, reason: Reason) -> None:
    error = answered("get_object", "the bucket 'x'", status=status, code=code)
    assert error.reason is reason
    assert str(error).startswith("the bucket 'x' ")
    assert (str(status) in str(error)) is (reason is not Reason.NO_BUCKET)


@pytest.mark.parametrize("operation", sorted(RIGHTS))
def test_a_missing_right_is_named(operation: str) -> None:
    error = answered(operation, "the bucket 'x'", status=403, code="AccessDenied")
    assert f"grant {RIGHTS[operation]} " in str(error)


def test_only_what_may_pass_is_tried_again() -> None:
    assert {reason for reason in Reason if reason.is_passing} == {Reason.BUSY, Reason.UNREACHABLE}
