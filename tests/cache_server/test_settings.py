from __future__ import annotations

import stat
from pathlib import Path

import pytest
from pydantic import ValidationError

from cache_server.service import Service
from cache_server.settings import Settings
from client.errors import ConfigurationError


def test_everything_has_a_default_that_works_for_one_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings()
    assert (settings.host, settings.port, settings.anonymous) == ("127.0.0.1", 8080, "none")
    assert settings.data_dir == tmp_path / "data-home" / "neff-cache"
    assert settings.store_path() == settings.data_dir / "store"
    assert settings.database_url().database == str(settings.data_dir / "cache.db")
    for value in ("", "relative/path"):
        monkeypatch.setenv("XDG_DATA_HOME", value)
        monkeypatch.setenv("HOME", "/home/somebody")
        assert Settings().data_dir == Path("/home/somebody/.local/share/neff-cache")


def test_the_environment_sets_what_the_command_line_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEFF_CACHE_PORT", "9000")
    monkeypatch.setenv("NEFF_CACHE_HOST", "localhost")
    monkeypatch.setenv("NEFF_CACHE_ALLOWED_HOSTS", "cache.example, cache ,")
    settings = Settings(host="127.0.0.2")
    assert (settings.host, settings.port) == ("127.0.0.2", 9000)
    assert settings.host_names() == {"cache.example", "cache", "localhost", "127.0.0.1", "[::1]"}


@pytest.mark.parametrize("wrong", [{"port": 70000}, {"anonymous": "write"}, {"lease_ttl_seconds": 0}, {"unknown": 1}])
def test_a_setting_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Settings(**wrong)


@pytest.mark.parametrize(
    ("host", "names"),
    [
        ("127.0.0.1", {"localhost", "127.0.0.1", "[::1]"}),
        ("::1", {"localhost", "127.0.0.1", "[::1]"}),
        ("10.1.2.3", {"localhost", "127.0.0.1", "[::1]", "10.1.2.3"}),
        ("Cache.Example", {"localhost", "127.0.0.1", "[::1]", "cache.example"}),
        ("fd00::1", {"localhost", "127.0.0.1", "[::1]", "[fd00::1]"}),
    ],
)
def test_a_server_answers_to_this_machine_and_to_the_address_it_was_given(host: str, names: set[str]) -> None:
    assert Settings(host=host).host_names() == names


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", ""])
def test_listening_everywhere_needs_the_names_to_answer_to(host: str) -> None:
    with pytest.raises(ConfigurationError, match="--allowed-host"):
        Settings(host=host).host_names()
    assert Settings(host=host, allowed_hosts=["cache"]).host_names() == {"cache", "localhost", "127.0.0.1", "[::1]"}


def test_any_host_and_no_token_do_not_go_together() -> None:
    assert Settings(allowed_hosts=("*",)).host_names() == {"*"}
    with pytest.raises(ConfigurationError, match="anonymous"):
        Settings(allowed_hosts=("*",), anonymous="read").host_names()


@pytest.mark.parametrize(
    ("store", "path"), [("/srv/neff", "/srv/neff"), ("file:///srv/neff", "/srv/neff"), ("~/x", str(Path.home() / "x"))]
)
def test_a_store_is_a_folder_or_the_url_of_one(store: str, path: str) -> None:
    assert Settings(store=store).store_path() == Path(path)


@pytest.mark.parametrize("store", ["s3:/typo://x", "http://x/y", "file://host/x"])
def test_a_store_of_an_unknown_kind_is_refused(store: str) -> None:
    with pytest.raises(ConfigurationError, match="--store"):
        Settings(store=store).store_path()


@pytest.mark.parametrize("url", ["nonsense", "mysql://h/x", "sqlite://", "sqlite:///:memory:"])
def test_a_database_of_an_unknown_kind_is_refused_without_showing_a_password(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigurationError, match="--database"):
        Service.open(Settings(data_dir=tmp_path / "d", database=url))


def test_a_password_in_a_database_url_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Service.open(Settings(data_dir=tmp_path / "d", database="postgresql+psycopg://u:secret@localhost/x"))
    assert "secret" not in str(raised.value)


def test_the_first_start_makes_a_token_that_only_its_user_can_read(tmp_path: Path) -> None:
    service = Service.open(Settings(data_dir=tmp_path / "d"))
    service.close()
    path = tmp_path / "config" / "neff-cache" / "token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    first = path.read_text()
    assert len(first.strip()) >= 43
    Service.open(Settings(data_dir=tmp_path / "d")).close()
    assert path.read_text() == first


def test_a_token_file_that_others_can_read_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "config" / "neff-cache" / "token"
    path.parent.mkdir(parents=True)
    path.write_text("x" * 43)
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="token"):
        Service.open(Settings(data_dir=tmp_path / "d"))


def test_an_address_that_others_reach_needs_a_token_of_its_own(tmp_path: Path) -> None:
    settings = {"host": "10.0.0.1", "data_dir": tmp_path / "d"}
    with pytest.raises(ConfigurationError, match="NEFF_CACHE_BOOTSTRAP_TOKEN"):
        Service.open(Settings(**settings))
    # the user's file was neither made nor read
    assert not (tmp_path / "config").exists()
    Service.open(Settings(**settings, bootstrap_token="t" * 40)).close()
    # it is in the database now
    Service.open(Settings(**settings)).close()


def test_data_folders_are_their_owners_alone(tmp_path: Path) -> None:
    Service.open(Settings(data_dir=tmp_path / "new" / "data")).close()
    assert stat.S_IMODE((tmp_path / "new" / "data").stat().st_mode) == 0o700


def test_a_file_where_the_data_folder_should_be_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("")
    with pytest.raises(ConfigurationError, match="--data-dir"):
        Service.open(Settings(data_dir=tmp_path / "d"))


def test_two_servers_never_share_a_sqlite_database_or_its_store(tmp_path: Path) -> None:
    first = Service.open(Settings(data_dir=tmp_path / "d"))
    try:
        with pytest.raises(ConfigurationError, match="another neff-cache server"):
            Service.open(Settings(data_dir=tmp_path / "d"))
        with pytest.raises(ConfigurationError, match="another neff-cache server"):
            Service.open(Settings(data_dir=tmp_path / "e", store=str(tmp_path / "d" / "store")))
        with pytest.raises(ConfigurationError, match="another neff-cache server"):
            Service.open(Settings(data_dir=tmp_path / "e", database=f"sqlite:///{tmp_path}/d/cache.db"))
    finally:
        first.close()
    Service.open(Settings(data_dir=tmp_path / "d")).close()


def test_any_folder_name_will_do(tmp_path: Path) -> None:
    Service.open(Settings(data_dir=tmp_path / "what? 100% #1 & more")).close()
    assert (tmp_path / "what? 100% #1 & more" / "cache.db").is_file()


def test_a_damaged_database_stops_the_start_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "cache.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(ConfigurationError, match="--database"):
        Service.open(Settings(data_dir=tmp_path / "d"))


def test_a_start_that_fails_leaves_the_data_to_the_next(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        Service.open(Settings(host="10.0.0.1", data_dir=tmp_path / "d"))
    Service.open(Settings(data_dir=tmp_path / "d")).close()
