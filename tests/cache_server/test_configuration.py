from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cache_server.configuration import configure, unread
from cache_server.settings import Settings
from cache_server.settings_reference import DOCUMENT, reference
from client.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "server.toml"
        path.write_text(text)
        return path

    return write


def _set(monkeypatch: pytest.MonkeyPatch, **variables: str) -> dict[str, str]:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    write: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write('host = "127.0.0.2"\nport = 1\nthreads = 2\nallowed_hosts = ["a", "b"]\n')
    environ = _set(monkeypatch, NEFF_CACHE_HOST="127.0.0.3", NEFF_CACHE_PORT="3")
    settings, sources = configure({"host": "127.0.0.4"}, environ, path)
    assert (settings.host, settings.port, settings.threads) == ("127.0.0.4", 3, 2)
    assert settings.allowed_hosts == ("a", "b")
    assert settings.drain_seconds == 0
    assert sources == {
        "host": "command line",
        "port": "NEFF_CACHE_PORT",
        "threads": str(path),
        "allowed_hosts": str(path),
    }


def test_the_environment_can_name_the_file(write: Callable[[str], Path]) -> None:
    path = write("port = 77\n")
    assert configure({}, {"NEFF_CACHE_CONFIG": str(path)}).settings.port == 77


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 1", "did you mean port"),
        ("lease_ttl = 3", "did you mean lease_ttl_seconds"),
        ("zzzzzz = 3", "there is no setting zzzzzz;"),
        ("[server]\nport = 1", "there is no setting server"),
        ("port = ", "is no TOML"),
        ('port = "many"', r"setting port = 'many' is refused \(.*server.toml\)"),
        ("threads = 1000", "setting threads = 1000 is refused"),
    ],
)
def test_a_mistake_in_the_file_is_said_in_one_sentence(write: Callable[[str], Path], text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        configure({}, {}, write(text))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nothing.toml cannot be read"):
        configure({}, {}, tmp_path / "nothing.toml")


def test_a_variable_that_no_server_reads_is_told_with_what_was_meant() -> None:
    assert unread({"NEFF_CACHE_PORT": "1", "NEFF_CACHE_CONFIG": "x", "HOME": "/"}) == []
    (said,) = unread({"NEFF_CACHE_DATABSE": "x"})
    assert "NEFF_CACHE_DATABASE?" in said


def test_secrets_come_from_mounted_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, token = tmp_path / "url", tmp_path / "token"
    url.write_text("postgresql://user:hidden@db/name\n")
    token.write_text("t" * 40 + "\n")
    environ = _set(monkeypatch, NEFF_CACHE_DATABASE_FILE=str(url), NEFF_CACHE_BOOTSTRAP_TOKEN_FILE=str(token))
    settings = configure({}, environ).settings
    assert settings.database_url().password == "hidden"
    assert settings.first_token() == "t" * 40
    assert "hidden" not in repr(settings)


def test_a_secret_given_on_the_command_line_hides_the_file_below_it(
    tmp_path: Path, write: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = _set(monkeypatch, NEFF_CACHE_DATABASE_FILE="/nowhere")
    settings, sources = configure({"database": f"sqlite:///{tmp_path}/a.db"}, environ)
    assert settings.database_url().database == f"{tmp_path}/a.db"
    assert "database_file" not in sources
    # and so does a variable for the settings file
    monkeypatch.delenv("NEFF_CACHE_DATABASE_FILE")
    environ = _set(monkeypatch, NEFF_CACHE_DATABASE=f"sqlite:///{tmp_path}/b.db")
    settings = configure({}, environ, write('database_file = "/nowhere"\n')).settings
    assert settings.database_url().database == f"{tmp_path}/b.db"


@pytest.mark.parametrize("content", [None, "", " \n", b"\xff\xfe"])
def test_a_secret_that_cannot_be_read_is_never_taken_for_an_empty_one(
    tmp_path: Path, content: str | bytes | None
) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigurationError, match=r"database_file .*secret"):
        Settings(database_file=path).database_url()
    with pytest.raises(ConfigurationError, match=r"bootstrap_token_file .*secret"):
        Settings(bootstrap_token_file=path).first_token()


def test_two_secrets_at_once_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="both set"):
        Settings(database="sqlite:////x", database_file=tmp_path / "f").database_url()
    with pytest.raises(ConfigurationError, match="both set"):
        Settings(bootstrap_token="t", bootstrap_token_file=tmp_path / "f").first_token()


def test_the_template_is_current() -> None:
    assert DOCUMENT.read_text() == reference(), "run `python -m cache_server.settings_reference --write`"


def test_the_template_sets_nothing_until_it_is_edited() -> None:
    assert tomllib.loads(reference()) == {}


def test_every_line_of_the_template_can_be_uncommented_and_says_the_default() -> None:
    # a line of a setting has no space after its #, a line of text has
    text, count = re.subn(r"^#(?=\w+ = )", "", reference(), flags=re.MULTILINE)
    values = tomllib.loads(text)
    assert count == len(values)
    assert list(values) == list(Settings.model_fields)
    defaults = Settings()
    for name, value in values.items():
        given = getattr(Settings(**{name: value}), name)
        field = Settings.model_fields[name]
        if field.default is None or field.default_factory is not None:
            assert given is not None, name
        else:
            assert given == getattr(defaults, name), name


def test_the_template_as_a_whole_makes_settings(write: Callable[[str], Path]) -> None:
    text = re.sub(r"^#(?=\w+ = )", "", reference(), flags=re.MULTILINE)
    settings = configure({}, {}, write(text)).settings
    assert settings.port == 8080
    assert settings.data_dir == Path("~/.local/share/neff-cache").expanduser()
