"""Every exception that the client raises.

::

    NeffCacheError
    ├── ConfigurationError      a setting cannot mean anything; says which, what is expected, what to try
    │   └── NodeFullError       a pull, and the node tier has no room for it
    ├── FormatError             bytes or JSON that are not what they claim to be
    │   ├── BundleError         an archive that is no sound bundle
    │   ├── NeffError           a file that is no valid NEFF container
    │   └── WireError           JSON from another party that breaks the contract of :mod:`client.wire`
    ├── UnreadableError         a file of another cache that cannot be read whole (tools only)
    ├── S3Error                 a request to a bucket failed; transports turn it into one of those below
    ├── SignatureError          an entry is not vouched for by anybody who is trusted here
    ├── CacheMissError          ``NEURON_CACHE_ON_MISS=fail`` and the entry is nowhere
    ├── CompileError            the compiler failed: its class, its text, its log
    │   └── NothingMade         it ended well, and left no whole NEFF
    └── TransportError          a request to the shared cache did not give its answer
        ├── Unreachable         no connection, no answer in time, a broken answer (feeds the breaker)
        ├── Denied              401 or 403: requests of that direction stop at once
        ├── Refused             the server answered and said no (409, 413, 422, 429, 507 …)
        ├── LeaseLost           the lease is no longer ours
        ├── Damaged             an output whose bytes are not those that its entry names
        ├── Unwanted            an entry that the caller would not use, so that its bytes were not fetched
        ├── TooLarge            an output that is larger than what this process may hold
        └── TooSlow             a fetch that takes longer than the compile did

A job never sees a ``TransportError`` unless ``NEURON_CACHE_ON_ERROR=fail`` asks for it. Defined in other
modules: `NodeFullError` in `client.pulling`, `BundleError` in `client.bundles`,
`Damaged`, `TooLarge`, `TooSlow` and `Unwanted` in `client.transports.base`, `S3Error` in `client.s3.errors`,
`UnreadableError` in `client.foreign.tree`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from client.cleaning import clean

FailureClass: TypeAlias = Literal["diagnosis", "resource", "transient"]

MAX_LOG = 64 * 1024
"""Characters of compiler log that travel with a failure: its end, where compilers say what went wrong."""

MAX_TEXT = 4096
"""Characters of the sentence of a failure that are taken from another party."""


class NeffCacheError(Exception):
    """Base of all exceptions of this distribution. What a message quotes of others moves no cursor."""

    def __str__(self) -> str:
        """Return the message, cleaned."""
        return clean(super().__str__())


class ConfigurationError(NeffCacheError):
    """A setting cannot be followed; the message says which one, what is expected and what to try."""


class FormatError(NeffCacheError, ValueError):
    """Bytes or JSON that are not what they claim to be."""


class NeffError(FormatError):
    """A file that is no valid NEFF container."""


class WireError(FormatError):
    """JSON from another party that breaks the wire contract."""


class SignatureError(NeffCacheError):
    """An entry is not vouched for by anybody who is trusted here.

    ``cause`` is one word: ``unsigned``, ``malformed``, ``unknown_key``, ``revoked``, ``wrong``, ``outside`` (the time
    of its key), ``not_allowed`` (its key, for this project or kind), ``wrong_key`` (its document is not its key's),
    ``not_checked`` (there is no way to, here).
    """

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


class CacheMissError(NeffCacheError):
    """The entry is in no tier and ``NEURON_CACHE_ON_MISS=fail`` forbids to compile it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A compile that failed. Only a diagnosis is the program's own fault and lasts."""

    failure_class: FailureClass
    text: str
    log: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the failure as plain JSON values, the log cut to its last `MAX_LOG` characters."""
        return {"class": self.failure_class, "text": self.text, "log": self.log[-MAX_LOG:]}

    @classmethod
    def from_json(cls, value: Any) -> Failure:
        """Read a failure; raises `WireError`."""
        if not isinstance(value, dict) or not isinstance(value.get("text"), str):
            raise WireError("failure: a JSON object with a text is expected")
        for failure_class in get_args(FailureClass):
            if value.get("class") == failure_class:
                return cls(failure_class, value["text"][:MAX_TEXT], str(value.get("log") or "")[-MAX_LOG:])
        raise WireError(f"failure class {value.get('class')!r} is not known here")


class CompileError(NeffCacheError):
    """The compiler failed, here or in another process whose failure was shared with us.

    ``failure`` holds the class (``diagnosis``, ``resource`` or ``transient``), the text and the compiler's log.
    ``origin`` names the host it failed on, or is None for this process.
    """

    def __init__(self, failure: Failure, *, origin: str | None = None) -> None:
        where = "" if origin is None else f" (on {origin})"
        log = f"\n{failure.log}" if failure.log else ""
        super().__init__(f"{failure.text}{where}{log}")
        self.failure = failure
        self.origin = origin

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by what it was made of: exceptions cross process boundaries in other people's pools."""
        return (_compile_error, (self.failure, self.origin))


def _compile_error(failure: Failure, origin: str | None) -> CompileError:
    return CompileError(failure, origin=origin)


class NothingMade(CompileError):  # noqa: N818 - reads as the state it reports
    """The compiler ended with exit status 0 and left no whole NEFF: nothing but its log tells why."""


class TransportError(NeffCacheError):
    """A request to the shared cache did not give its answer."""


class Unreachable(TransportError):  # noqa: N818 - reads as the state it reports
    """No connection, no answer in time, or an answer that breaks the protocol."""


class Denied(TransportError):  # noqa: N818
    """The server answered 401 or 403."""


class Refused(TransportError):  # noqa: N818
    """The server answered with an error of its own: ``status`` is the HTTP status, ``name`` the problem's name."""

    def __init__(self, message: str, *, status: int, name: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.name = name


class LeaseLost(TransportError):  # noqa: N818
    """The lease is no longer ours: it ran out, or another process took it over."""
