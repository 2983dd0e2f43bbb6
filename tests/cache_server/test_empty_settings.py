"""A setting that is set and empty is one that is not set, or is refused in a sentence: never a value of its own.

So compose files, charts and shells write what nobody gave. The tables are made from the settings themselves.
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from cache_server import configuration
from cache_server.admin_cli import admin_app
from cache_server.cli import serve_app
from cache_server.configuration import CONFIG_VARIABLE, configure, made_up, unread
from cache_server.settings import PREFIX, Settings
from client.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLANKS = ("", " ", "\t\n")
_LINKS = {
    "NEFF_CACHE_PORT": "tcp://10.0.0.1:80",
    "NEFF_CACHE_PORT_80_TCP": "tcp://10.0.0.1:80",
    "NEFF_CACHE_PORT_80_TCP_PROTO": "tcp",
    "NEFF_CACHE_PORT_80_TCP_PORT": "80",
    "NEFF_CACHE_PORT_80_TCP_ADDR": "10.0.0.1",
    "NEFF_CACHE_SERVICE_HOST": "fd00::10",
    "NEFF_CACHE_SERVICE_PORT": "80",
    "NEFF_CACHE_SERVICE_PORT_HTTP": "80",
    "NEFF_CACHE_NAME": "/web/neff-cache",
    "NEFF_CACHE_ENV_NEFF_CACHE_STORE": "/elsewhere",
    "NEFF_CACHE_DATABASE_SERVICE_HOST": "10.0.0.2",
    "NEFF_CACHE_DATABASE_PORT": "tcp://10.0.0.2:5432",
}
"""What Kubernetes and Docker make up for services called neff-cache and neff-cache-database."""


def test_a_variable_that_is_set_and_empty_leaves_the_setting_to_the_file_or_its_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = Settings()
    for name in Settings.model_fields:
        variable = f"{PREFIX}{name.upper()}"
        for blank in _BLANKS:
            monkeypatch.setenv(variable, blank)
            assert Settings() == usual, name
            assert configure({}, {variable: blank}) == (usual, {}), name
        monkeypatch.delenv(variable)


def test_an_empty_variable_does_not_hide_what_the_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "server.toml"
    path.write_text('store = "/srv/store"\nbootstrap_token_file = "/run/token"\n')
    environ = {"NEFF_CACHE_STORE": "", "NEFF_CACHE_BOOTSTRAP_TOKEN": "", CONFIG_VARIABLE: str(path)}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    settings = configure({}, environ).settings
    assert settings.store_path() == Path("/srv/store")
    assert settings.bootstrap_token_file == Path("/run/token")
    assert configure({}, {CONFIG_VARIABLE: " "}).settings == Settings()


def test_an_empty_line_of_the_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    for name in Settings.model_fields:
        path.write_text(f'{name} = ""\n')
        with pytest.raises(ConfigurationError, match=f"setting {name} is empty .*server.toml") as raised:
            configure({}, {}, path)
        assert "\n" not in str(raised.value)


def _options() -> Iterator[tuple[str, str]]:
    """Yield the command line and the option, for every option of a server's commands that takes a text of settings."""
    commands = {"serve": get_command(serve_app), **dict(_commands(get_command(admin_app), "admin"))}
    settings = {*Settings.model_fields, "allowed_host", "config"}
    for words, command in commands.items():
        for parameter in command.params:
            if parameter.name in settings and not getattr(parameter, "is_flag", True):
                yield words, parameter.opts[0]


def _commands(group: Any, words: str) -> Iterator[tuple[str, Any]]:
    for name, command in getattr(group, "commands", {}).items():
        yield f"{words} {name}", command
        yield from _commands(command, f"{words} {name}")


def test_an_empty_option_is_refused_in_a_sentence(tmp_path: Path) -> None:
    options = list(_options())
    assert len(options) > 30
    for words, option in options:
        _check_refused(tmp_path, words, option)


def _check_refused(tmp_path: Path, words: str, option: str) -> None:
    from client.cli.main import app  # noqa: PLC0415

    required = {"admin backup": [str(tmp_path / "f")], "admin token revoke": ["0" * 12], "admin token create": ["x"]}
    more = required.get(words, []) + (["--grant", "read"] if words == "admin token create" else [])
    ran = CliRunner().invoke(app, [*words.split(), *more, option, ""])
    assert ran.exit_code == 2, (words, option, ran.output)
    assert "empty" in ran.output or "Invalid value" in ran.output, (words, option, ran.output)


def test_no_part_of_the_server_reads_a_variable_past_its_settings() -> None:
    known = {"XDG_DATA_HOME", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_TRACES_EXPORTER", "SSL_CERT_FILE"}
    folder = Path(inspect.getfile(configuration)).parent
    read = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in {"get", "getenv"}
            ):
                name = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
                if isinstance(name, str) and re.fullmatch(r"[A-Z][A-Z0-9_]{3,}", name):
                    read.add(name)
    assert read <= known


def test_what_a_platform_made_up_from_a_services_name_is_no_setting_and_no_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = Settings()
    for name, value in _LINKS.items():
        monkeypatch.setenv(name, value)
    assert configure({}, _LINKS) == (usual, {})
    assert unread(_LINKS) == []
    said = made_up(_LINKS)
    assert said is not None
    assert "NEFF_CACHE_PORT=tcp://10.0.0.1:80 is ignored" in said
    assert "enableServiceLinks: false" in said
    assert made_up({"NEFF_CACHE_PORT": "8080"}) is None


def test_a_mistake_that_no_platform_makes_is_still_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unread({"NEFF_CACHE_NAME": "ours"}) == ["NEFF_CACHE_NAME is set, and no server reads it"]
    monkeypatch.setenv("NEFF_CACHE_PORT", "http://10.0.0.1:80")
    with pytest.raises(ConfigurationError, match=r"setting port .*NEFF_CACHE_PORT"):
        configure({}, {"NEFF_CACHE_PORT": "http://10.0.0.1:80"})
