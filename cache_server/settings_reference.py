"""``python -m cache_server.settings_reference [--write]``: ``docs/server.toml``, made from the settings themselves.

The file is both the reference manual and a template: every setting stands in it, commented out, with its default. A
test compares it with what this prints, so that neither can be changed alone.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from annotated_types import Ge, Gt, Le, Lt

from cache_server.settings import Settings
from client.cli.output import print_or_write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "server.toml"

_HEAD = """\
# Settings of `neff-cache serve`, all of them, each with its default.
#
# Made by `python -m cache_server.settings_reference --write`; a test keeps it current.
#
# Use it with `neff-cache serve --config FILE` or NEFF_CACHE_CONFIG=FILE. Remove the # in front of what is to be set.
# Each setting is also a variable of the environment, NEFF_CACHE_PORT for port; some are options of `neff-cache serve`.
# The command line wins over the environment, that over this file, and this file over the defaults. Durations are in
# seconds, sizes in bytes. `neff-cache admin check-config --config FILE` says what is wrong before a server starts.
"""
_SECTIONS = {
    "host": "Address, role, data, access",
    "tls_cert": "TLS",
    "lease_ttl_seconds": "Leases, time limits, stop, sweep",
    "redirect_bytes": "Redirects to S3",
    "usage_seconds": "Use and collection",
    "reserve_bytes": "Room and scrub",
    "max_output_bytes": "Limits",
    "audit_days": "Records",
}
"""Titles, by the setting that each begins with."""

_SHOWN: dict[str, Any] = {
    "data_dir": "~/.local/share/neff-cache",
    "store": "s3://bucket/prefix",
    "database": "postgresql://user@host/name",
    "database_file": "/run/secrets/neff-cache-database",
    "bootstrap_token": "a long random text",
    "bootstrap_token_file": "/run/secrets/neff-cache-token",
    "identity_file": "/etc/neff-cache/identity.toml",
    "tls_cert": "/etc/neff-cache/tls.crt",
    "tls_key": "/etc/neff-cache/tls.key",
    "tls_client_ca": "/etc/neff-cache/clients.crt",
    "redirect_bytes": 67108864,
    "rate_limit": 100.0,
    "otlp_endpoint": "http://localhost:4318",
}
"""Examples, for settings whose default TOML cannot say: none, or one that depends on the user."""

_WIDTH = 118
_WORDS = ((Ge, "ge", "at least"), (Gt, "gt", "above"), (Le, "le", "at most"), (Lt, "lt", "below"))


def reference() -> str:
    """Return the document."""
    return _HEAD + "".join(_section(name) + _entry(name, field) for name, field in Settings.model_fields.items())


def _section(name: str) -> str:
    return f"\n\n# ---- {_SECTIONS[name]}\n" if name in _SECTIONS else ""


def _entry(name: str, field: FieldInfo) -> str:
    default = field.get_default()
    has_default = default is not None and field.default_factory is None
    value = default if has_default else _SHOWN[name]
    said = [field.description or "", *_bounds(field)]
    if not has_default:
        said.append("Not set by default; an example:")
    text = textwrap.fill(" ".join(said), _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
    return f"\n{text}\n#{name} = {_toml(value)}\n"


def _bounds(field: FieldInfo) -> Iterator[str]:
    choices = [choice for choice in get_args(field.annotation) if isinstance(choice, str)]
    if choices:
        yield "One of " + ", ".join(json.dumps(choice) for choice in choices) + "."
    words = [
        f"{word} {getattr(found, attribute):g}"
        for kind, attribute, word in _WORDS
        for found in field.metadata
        if isinstance(found, kind)
    ]
    if words:
        yield words[0].capitalize() + "".join(f", {word}" for word in words[1:]) + "."


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    # JSON's texts, numbers and truth values are TOML's
    return json.dumps(value if isinstance(value, (str, int, float)) else str(value))


def main() -> None:
    """Print the document, or write it with ``--write``."""
    print_or_write(DOCUMENT, reference())


if __name__ == "__main__":
    main()
