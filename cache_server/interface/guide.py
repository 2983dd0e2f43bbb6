"""What happened and what to do, a paragraph for each row of `cache_server.errors.ERRORS`.

``docs/errors.md`` is made of them, and so is the part on errors of the page ``/docs``.
"""

from __future__ import annotations

from cache_server.errors import ERRORS

GUIDE = {
    "short_body": (
        "The connection ended, or the sender stopped, before the number of bytes in Content-Length had come. Nothing "
        "was kept. Send the whole body again; if it happens often, look for a proxy with a time limit on requests."
    ),
    "broken_body": (
        "A body sent with Content-Encoding: zstd is not one whole zstd frame. Nothing was kept. Compress the plain "
        "bytes as a single frame, or send them plain."
    ),
    "unauthorized": (
        "There is no token, or one that is malformed, unknown, expired or revoked; the answer does not say which. Set "
        "NEURON_CACHE_TOKEN or NEURON_CACHE_TOKEN_FILE, or have an administrator make a token: see docs/tokens.md."
    ),
    "forbidden": (
        "The token is good and has some right on the project, but not the one that this call needs; the detail names "
        "the scope. Ask whoever administers the project for a token with it. Trying again does not help."
    ),
    "not_found": (
        "There is no such thing, or the token has no right at all on the project: the two are not told apart. For an "
        "artifact it is an ordinary miss. If the project should be there, check its name and the token's grants with "
        "`GET /v1/-/whoami`."
    ),
    "method_not_allowed": (
        "The address is known, the method is not one of its own; the header Allow lists those. Check the client's "
        "version against the server's."
    ),
    "upload_timeout": (
        "No byte of the body came for some time, or bytes came far too slowly (`upload_idle_seconds`). Nothing was "
        "kept. Send the body again from a machine that has it at hand."
    ),
    "blob_missing": (
        "The entry names an output that is not stored with that size: it was never uploaded, or was swept as a "
        "left-over before the entry was published. Upload the outputs that the detail names, then publish again."
    ),
    "lease_lost": (
        "The lease ended: its heartbeat came too late, it was given back, or its key was published, deleted or taken "
        "over. Stop renewing it. A result may still be published; the first one that is published stays."
    ),
    "other_entry": (
        "The call was about one entry, and another stands under that key: compilers are not deterministic, and the "
        "first entry stays. Read the entry again and decide with what it says now."
    ),
    "precondition_failed": (
        "A read named another representation in If-Match than the stored one, or an upload asked to be made only if "
        "something is, or is not, stored already. Tags are the output's SHA-256 in quotes, with `-zstd` where it is "
        "sent compressed. After a read drop what was fetched so far; after an upload with `If-None-Match: *` nothing "
        "is left to do."
    ),
    "too_large": (
        "The body, or what it decompresses to, is larger than `max_output_bytes`, `max_entry_bytes` or "
        "`max_batch_bytes`. Split a batch into several; for a larger output an operator raises the setting."
    ),
    "unsupported_encoding": (
        "The body came with another Content-Encoding than `identity` or `zstd`. Send it plain or as one zstd frame."
    ),
    "unsupported_type": (
        "A JSON body came with another Content-Type, or with none, and was not read: what a web page can send without "
        "asking is never JSON by its type. Send `Content-Type: application/json`."
    ),
    "range_not_satisfiable": (
        "The first byte asked for lies behind the end; Content-Range says how long the output is. Whoever goes on with "
        "a download of that length has it whole already."
    ),
    "wrong_host": (
        "The Host header is no name of this server, which is how a web page of another site would reach it. Use one of "
        "its names, or have the operator add this one with --allowed-host."
    ),
    "invalid": (
        "A name, a parameter or the body breaks the interface; the detail says which and what is expected. The same "
        "request will fail again: it is the client that has to change."
    ),
    "wrong_digest": (
        "The plain bytes do not hash to the SHA-256 in the address: they were damaged on the way, or the file changed "
        "between hashing and sending. Nothing was kept. Hash and send the same bytes."
    ),
    "wrong_key": (
        "The key in the address is not the SHA-256 of the canonical (RFC 8785) key document, or the document is of "
        "another kind. Nothing was published. Whoever made the entry computes keys differently: check its version."
    ),
    "signature_required": (
        "The project takes signed entries only. Set NEURON_CACHE_SIGNING_KEY to a key that the project trusts: see "
        "docs/trust.md."
    ),
    "signature_invalid": (
        "The signature does not match the entry or the record of a promotion, or its key is unknown here, revoked, or "
        "not trusted for this project. Check the key with `neff-cache admin trust`; never publish by other means."
    ),
    "too_many_leases": (
        "The token holds as many leases at once as `max_leases` lets it: usual jobs hold one for each compiler that "
        "runs. Give back those that are not needed, or wait until they run out. Clients of ours compile alone "
        "meanwhile. If all of them are at work, the operator raises the setting, or gives each job a token of its own."
    ),
    "throttled": (
        "The token sent more requests a second than it may, or too many outputs are being verified. Wait the seconds "
        "in Retry-After, then send the request again; ask for many keys at once with `lookup` and `fetch`."
    ),
    "internal": (
        "The server failed in a way it was not made for. Its log has the cause under the request id of this answer: "
        "please report it with that. Jobs go on without the cache."
    ),
    "busy": (
        "Another request works on the same key and took longer than `key_lock_seconds`. Wait the seconds in "
        "Retry-After and try again."
    ),
    "store_unavailable": (
        "The object store failed or was too slow, so that nothing can be said about the entry: it is neither a miss "
        "nor damage. Try again later; the operator finds the cause in the log and in the metrics of the store."
    ),
    "not_ready": (
        "The database does not answer, or a part of the server cannot serve yet. Try again later; `/readyz` says when "
        "it can, the log why it cannot."
    ),
    "quota_exceeded": (
        "The project holds as much as its quota allows and nothing could be collected. Reads go on. Delete or unpin "
        "entries, or have an operator raise the quota: see docs/collection.md."
    ),
    "store_full": (
        "The disk or bucket of the store has no room, or only what `reserve_bytes` keeps free. Reads go on. The "
        "operator makes room or sets a quota for the server: see docs/collection.md."
    ),
}
"""By name, in the order of the table."""

_HEAD = """# Errors of the server

Made by `python -m cache_server.interface --write` from the server's own table; a test keeps it current.

Every answer with a status of 400 and above is `application/problem+json` (RFC 9457):

```json
{"type": "urn:neff-cache:problem:lease_lost", "title": "This lease has ended: …", "status": 409,
 "name": "lease_lost", "request_id": "5f0c3a1e9b7d2468", "detail": "…"}
```

`name` and `type` are stable: programs act on them. `title` is the sentence below, `detail`, where there is one, says
what was wrong with this request. `request_id` is also the header `X-Request-Id` and in the server's log. An answer to
`HEAD` has the status and headers alone. A job never fails because of these: it compiles, with one warning for each
cause, unless `NEURON_CACHE_ON_ERROR=fail` asks for the opposite.
"""


def errors_document() -> str:
    """Return ``docs/errors.md``."""
    sections = (
        f"\n## {kind.name}\n\n{kind.status}. {kind.sentence}\n\n{GUIDE[kind.name]}\n" for kind in ERRORS.values()
    )
    return _HEAD + "".join(sections)
