from __future__ import annotations

import os
import stat
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from client.errors import ConfigurationError
from client.token import ensure_user_token, is_loopback, read_user_token, user_token_path
from client.token_source import TokenSource, client_token

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = "http://127.0.0.1:8080"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "config"), "HOME": str(tmp_path / "home")}


@pytest.fixture
def path(environ: dict[str, str]) -> Path:
    path = user_token_path(environ)
    path.parent.mkdir(parents=True)
    return path


def test_a_new_token_is_secret_from_the_first_moment(environ: dict[str, str]) -> None:
    old = os.umask(0)
    try:
        token = ensure_user_token(environ)
    finally:
        os.umask(old)
    path = user_token_path(environ)
    assert len(token) >= 43  # 256 bits in base64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_a_token_stays_the_same(environ: dict[str, str]) -> None:
    assert read_user_token(environ) is None
    token = ensure_user_token(environ)
    assert ensure_user_token(environ) == token == read_user_token(environ)


def test_processes_that_start_at_once_agree_on_one_token(environ: dict[str, str]) -> None:
    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(ensure_user_token, [environ] * 16))) == 1
    user_token_path(environ).unlink()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        assert len(set(processes.map(ensure_user_token, [environ] * 8))) == 1


def test_a_home_without_hard_links_has_a_token_too(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert ensure_user_token(environ) == read_user_token(environ)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_token_that_others_may_know_is_refused(environ: dict[str, str], path: Path, mode: int) -> None:
    path.write_text("known-to-others")
    path.chmod(mode)
    for use in (read_user_token, ensure_user_token):
        with pytest.raises(ConfigurationError, match="others have access") as caught:
            use(environ)
        assert "known-to-others" not in str(caught.value)
    assert path.read_text() == "known-to-others"


def test_a_token_that_somebody_else_put_there_is_refused(
    environ: dict[str, str], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_user_token(environ)
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(ConfigurationError, match="belongs to user id"):
        read_user_token(environ)


def test_a_link_is_never_followed(environ: dict[str, str], path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("a-token")
    elsewhere.chmod(0o600)
    path.symlink_to(elsewhere)
    with pytest.raises(ConfigurationError, match="symbolic link"):
        read_user_token(environ)
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError):
        ensure_user_token(environ)
    assert not (tmp_path / "nowhere").exists()


def test_a_pipe_in_place_of_the_token_hangs_nobody(environ: dict[str, str], path: Path) -> None:
    os.mkfifo(path, 0o600)
    with pytest.raises(ConfigurationError, match="no regular file"):
        read_user_token(environ)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_is_refused_by_name_and_leaves_nothing_open(
    environ: dict[str, str], path: Path, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(path)
    make(tmp_path / "given")
    before = _open_files()
    for _ in range(3):
        with pytest.raises(ConfigurationError, match="no regular file"):
            read_user_token(environ)
        with pytest.raises(ConfigurationError, match="no regular file"):
            client_token("http://cache", {"NEURON_CACHE_TOKEN_FILE": str(tmp_path / "given")})
    assert _open_files() == before


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("content", ["", "\n", "two words", "a\nb", "café", "a\0b"])
def test_what_cannot_stand_in_a_header_is_no_token(environ: dict[str, str], path: Path, content: str) -> None:
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="holds no token"):
        read_user_token(environ)


def test_a_folder_that_cannot_be_made_is_named(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "config").write_text("a file")
    with pytest.raises(ConfigurationError, match="XDG_CONFIG_HOME"):
        ensure_user_token(environ)


def test_the_file_stands_where_xdg_says(tmp_path: Path) -> None:
    assert user_token_path({"XDG_CONFIG_HOME": "/etc/xdg"}).as_posix() == "/etc/xdg/neff-cache/token"
    for unset in ({}, {"XDG_CONFIG_HOME": ""}, {"XDG_CONFIG_HOME": "relative"}):
        path = user_token_path({"HOME": str(tmp_path), **unset})
        assert path == tmp_path / ".config" / "neff-cache" / "token"


# Which token a client shows


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.8.9.1", "[::1]"])
def test_the_users_own_token_is_shown_to_this_machine(environ: dict[str, str], host: str) -> None:
    token = ensure_user_token(environ)
    assert client_token(f"http://{host}:8080/base", environ) == token


@pytest.mark.parametrize("host", ["cache", "10.0.0.1", "localhost.example", "127.0.0.1.example", "[::2]", "0.0.0.0"])
def test_the_users_own_token_is_shown_to_no_other_machine(environ: dict[str, str], host: str) -> None:
    ensure_user_token(environ)
    assert client_token(f"http://{host}:8080", environ) is None


def test_a_token_in_the_environment_comes_first(environ: dict[str, str], tmp_path: Path) -> None:
    ensure_user_token(environ)
    file = tmp_path / "token"
    file.write_text("from-file\n")
    environ["NEURON_CACHE_TOKEN_FILE"] = str(file)
    assert client_token(HERE, environ) == "from-file"
    assert client_token("http://cache:8080", environ) == "from-file"
    environ["NEURON_CACHE_TOKEN"] = " from-variable "
    assert client_token(HERE, environ) == "from-variable"


def test_empty_settings_count_as_not_set(environ: dict[str, str]) -> None:
    token = ensure_user_token(environ)
    assert client_token(HERE, {**environ, "NEURON_CACHE_TOKEN": "", "NEURON_CACHE_TOKEN_FILE": ""}) == token


def test_a_mounted_secret_that_is_renewed_is_read_again(environ: dict[str, str], tmp_path: Path) -> None:
    """As Kubernetes does it: a link into a folder that is replaced whole."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(f"token-{name}\n")
    current = tmp_path / "current"
    current.symlink_to("one")
    environ["NEURON_CACHE_TOKEN_FILE"] = str(current / "token")
    source = TokenSource("http://cache", environ)
    assert source.current() == "token-one"
    (tmp_path / "new").symlink_to("two")
    (tmp_path / "new").replace(current)
    assert source.current() == "token-two"


def test_a_setting_that_names_no_file_says_so(environ: dict[str, str], tmp_path: Path) -> None:
    environ["NEURON_CACHE_TOKEN_FILE"] = str(tmp_path / "absent")
    with pytest.raises(ConfigurationError, match="NEURON_CACHE_TOKEN_FILE"):
        client_token(HERE, environ)


def test_a_token_with_a_line_break_cannot_split_a_request(environ: dict[str, str]) -> None:
    environ["NEURON_CACHE_TOKEN"] = "abc\r\nX-Other: 1"
    with pytest.raises(ConfigurationError) as caught:
        client_token(HERE, environ)
    assert "abc" not in str(caught.value)


def test_loopback_is_recognised_without_asking_a_name_server() -> None:
    assert [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "", "127.0.0.1.nip.io")] == [
        True, True, True, False, False,
    ]  # fmt: skip
