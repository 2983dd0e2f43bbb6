"""The folders that belong to the user, by the XDG base directory specification.

Only `os` is imported: the launcher runs this before every hit.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # see the module's docstring
if TYPE_CHECKING:
    from collections.abc import Mapping

BELOW_HOME: Mapping[str, str] = {
    "XDG_CACHE_HOME": ".cache",
    "XDG_CONFIG_HOME": ".config",
    "XDG_DATA_HOME": ".local/share",
}


def base_folder(environ: Mapping[str, str], name: str) -> str | None:
    """Return the absolute folder that the variable ``name`` of `BELOW_HOME` says, by default the one below the home.

    One that is empty or relative counts as not set, as the specification has it: it would be another folder in every
    working directory. None where no home directory is known either.
    """
    base = environ.get(name, "").strip()
    if base.startswith("/"):
        return base
    home = home_folder(environ)
    return None if home is None else os.path.join(home, BELOW_HOME[name])  # noqa: PTH118 - see the module's docstring


def home_folder(environ: Mapping[str, str]) -> str | None:
    """Return what ``HOME`` says, else what the password file says of this user; None if neither says anything."""
    home = environ.get("HOME", "").strip()
    if home.startswith("/"):
        return home
    import pwd  # noqa: PLC0415 - HOME is nearly always there

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # usual in containers
        return None
