"""A variable that is set and empty is one that is not set, for everything that the client reads."""

from __future__ import annotations

import os
import pwd
import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import client
from client import environment
from client.compiler_path import find_compiler
from client.errors import ConfigurationError
from client.launcher.passing import depth
from client.launcher.tier import Tier
from client.look_alikes import KNOWN, answers, unread
from client.settings import Settings
from client.token import user_token_path
from client.token_source import client_token
from client.transports.endpoint import parse_server, proxy_for, route_to

if TYPE_CHECKING:
    from collections.abc import Mapping

_STANDARD = (
    "HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy",
    "ALL_PROXY", "no_proxy", "NO_PROXY", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "LOCAL_RANK",
    "NEURON_CC_FLAGS", "XLA_FLAGS", *environment.RESOLVED, "NEURON_COMPILE_CACHE_URL", "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip
"""What others name and the client reads as well."""
_BLANKS = ("", " ", "\t\n")


def _observed(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return all that the client makes of an environment."""
    origin, _ = parse_server("https://cache.example")
    tier = Tier(environ)
    tls = route_to(origin, environ, own=True).tls
    assert tls is not None
    return {
        "settings": Settings.from_environment(environ),
        "token": client_token("http://cache.example", environ),
        "user token": user_token_path(environ),
        "proxies": [proxy_for(parse_server(f"{scheme}://cache.example")[0], environ) for scheme in ("http", "https")],
        "authorities": len(tls.get_ca_certs()),
        "compiler": find_compiler(environ),
        "tier": (tier.root, tier.project, tier.shared, tier.plain),
        "depth": depth(environ),
        "words": environment.compiler_words(environ),
        "xla": environment.xla_flags_without_dumps(environ),
        "cores": environment.resolve_logical_cores(environ, "trn2"),
        "target": _target(environ),
        "answers": list(answers(environ, None)),
    }


def _target(environ: Mapping[str, str]) -> str:
    try:
        return environment.resolve_target(environ, root="/nowhere")
    except ConfigurationError as error:
        return str(error)


@pytest.fixture
def usual(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What is set: next to nothing."""
    for name in (*KNOWN, *_STANDARD):
        monkeypatch.delenv(name, raising=False)
    return {"PATH": os.environ["PATH"]}


@pytest.mark.parametrize("name", sorted({*KNOWN, *_STANDARD}))
def test_an_empty_variable_is_none(usual: dict[str, str], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    expected = _observed(usual)
    for blank in _BLANKS:
        # what OpenSSL and Python read for themselves, they read here
        monkeypatch.setenv(name, blank)
        assert _observed({**usual, name: blank}) == expected


def test_an_empty_home_is_not_the_root_folder(usual: dict[str, str]) -> None:
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert Settings.from_environment({**usual, "HOME": ""}).node_dir == home / ".cache" / "neff-cache"
    assert user_token_path({**usual, "HOME": ""}) == home / ".config" / "neff-cache" / "token"


def test_an_empty_list_of_authorities_trusts_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path(ssl.get_default_verify_paths().openssl_cafile).exists():
        pytest.skip("this system keeps its certificates elsewhere")
    monkeypatch.setenv("SSL_CERT_FILE", "")
    origin, _ = parse_server("https://cache.example")
    tls = route_to(origin, {}, own=True).tls
    assert tls is not None
    assert tls.get_ca_certs()


def test_every_standard_variable_that_the_client_reads_is_in_the_table() -> None:
    folder = Path(client.__file__).parent
    pattern = re.compile(r"""environ(?:\.get\(|\[)\s*f?["']([A-Za-z][A-Za-z0-9_]+)["']""")
    read = {name for path in folder.rglob("*.py") for name in pattern.findall(path.read_text())}
    assert {"HOME"} <= read
    # words of a search path: there an empty one is the working directory, as everywhere; the rest only holds values
    assert read - {*_STANDARD, *KNOWN} <= {"PATH", "PYTHONPATH", "TORCH_DEVICE_BACKEND_AUTOLOAD"}


@pytest.mark.parametrize("service", ["NEURON_CACHE", "NEURON_CACHE_URL"])
def test_what_a_platform_made_up_from_a_services_name_is_not_called_a_mistake(service: str) -> None:
    made = {
        f"{service}_PORT": "tcp://10.0.0.1:80",
        f"{service}_SERVICE_HOST": "10.0.0.1",
        f"{service}_SERVICE_PORT": "80",
        f"{service}_SERVICE_PORT_HTTP": "80",
        f"{service}_PORT_80_TCP": "tcp://[fd00::1]:80",
        f"{service}_PORT_80_TCP_PROTO": "tcp",
        f"{service}_PORT_80_TCP_PORT": "80",
        f"{service}_PORT_80_TCP_ADDR": "fd00::1",
        f"{service}_NAME": "/job/cache",
        f"{service}_ENV_PATH": "/bin",
    }
    assert unread(made) == []
    assert unread({f"{service}_SERVICE_HOST": "cache.example", f"{service}_NAME": "x"}) != []
