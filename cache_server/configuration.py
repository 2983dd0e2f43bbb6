"""Settings from all the places they may stand in: command line before environment before file before default."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from cache_server.settings import PREFIX, Settings, variables
from client.environment import is_made_up
from client.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG_VARIABLE = f"{PREFIX}CONFIG"

_COMMAND_LINE = "command line"
_LIKENESS = 0.6
_SECRETS = frozenset({"bootstrap_token", "database", "store", "otlp_endpoint"})
"""Settings whose values may be, or hold, a secret."""
_PAIRS = (("database", "database_file"), ("bootstrap_token", "bootstrap_token_file"))
"""Two ways to say one thing: what stands higher hides both of what stands lower."""


class Configured(NamedTuple):
    """Settings, and where each that is no default comes from: ``command line``, a variable or a file."""

    settings: Settings
    sources: dict[str, str]


def configure(given: Mapping[str, Any], environ: Mapping[str, str], config: Path | None = None) -> Configured:
    """Return the settings. ``given``: those of the command line; ``config``: its file, else ``NEFF_CACHE_CONFIG``'s.

    Raises `ConfigurationError` for a file that cannot be used, a name that is no setting, a value that is refused.
    """
    path = config or _path_in(environ)
    in_file = {} if path is None else file_values(path)
    # the variables themselves are read by pydantic: here it counts only which are set
    in_environment = {name: variable for name, (variable, _) in variables(environ).items()}
    sources = {**dict.fromkeys(in_file, str(path)), **in_environment, **dict.fromkeys(given, _COMMAND_LINE)}
    _refuse_empty(in_file, sources)
    _refuse_empty(given, sources)
    values = {**{name: value for name, value in in_file.items() if name not in in_environment}, **given}
    for pair in _PAIRS:
        highest = next((level for level in (given, in_environment, in_file) if any(name in level for name in pair)), ())
        for name in pair:
            if name not in highest and sources.pop(name, None) is not None:
                values[name] = None
    try:
        return Configured(Settings(**values), sources)
    except ValidationError as error:
        problem = error.errors()[0]
        name = ".".join(str(part) for part in problem["loc"])
        source = sources.get(str(problem["loc"][0]), "")
        # pydantic hides what is no text, too, and neither is a mistyped secret to be seen
        shown = "" if name in _SECRETS else f" = {problem['input']!r}"
        where = f" ({source})" if source and source != _COMMAND_LINE else ""
        raise ConfigurationError(f"setting {name}{shown} is refused{where}: {problem['msg']}") from error


def _refuse_empty(values: Mapping[str, Any], sources: Mapping[str, str]) -> None:
    """Raise `ConfigurationError` for a setting that is given, and empty: what was meant is not the default."""
    for name, value in values.items():
        listed = value if isinstance(value, list) else [value]
        if any(isinstance(each, str) and not each.strip() for each in listed):
            raise ConfigurationError(f"setting {name} is empty ({sources[name]}): give it a value, or leave it out")


def file_values(path: Path) -> dict[str, Any]:
    """Return what a file sets; raises `ConfigurationError` if it cannot be read, or names what is no setting."""
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"the settings in {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is no TOML: {error}") from error
    for name in values:
        if name not in Settings.model_fields:
            raise ConfigurationError(f"{path}: there is no setting {name}{_meant(name)}; see docs/server.toml")
    return values


def unread(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable with our prefix that no server reads."""
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields} | {CONFIG_VARIABLE}
    return [
        f"{name} is set, and no server reads it{_meant(name.upper().removeprefix(PREFIX), as_variable=True)}"
        for name in sorted(environ)
        if name.upper().startswith(PREFIX) and name.upper() not in known and not is_made_up(name, environ)
    ]


def made_up(environ: Mapping[str, str]) -> str | None:
    """Return a sentence about the variables that look like settings and were made up by a platform; None without."""
    settings = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    names = sorted(name for name in environ if name.upper() in settings and is_made_up(name, environ))
    if not names:
        return None
    shown = ", ".join(f"{name}={environ[name]}" for name in names)
    return (
        f"{shown} is ignored: the platform made it up from the name of "
        "a service (in Kubernetes, enableServiceLinks: false leaves it out)"
    )


def _path_in(environ: Mapping[str, str]) -> Path | None:
    found = environ.get(CONFIG_VARIABLE, "").strip()
    return Path(found).expanduser() if found else None


def _meant(name: str, *, as_variable: bool = False) -> str:
    near = difflib.get_close_matches(name.lower(), Settings.model_fields, 1, _LIKENESS)
    found = f"{PREFIX}{near[0].upper()}" if near and as_variable else "".join(near)
    return f", did you mean {found}?" if found else ""
