"""The examples that run the server elsewhere: their settings, commands and times are what the server takes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from typer.main import get_command

from cache_server.configuration import CONFIG_VARIABLE, PREFIX, configure
from cache_server.settings import Settings
from client.cli.main import app

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
VARIABLES = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields} | {CONFIG_VARIABLE}


def _documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / "server.yaml").read_text()))


def _pods() -> list[dict[str, Any]]:
    return [one["spec"]["template"]["spec"] for one in _documents() if one["kind"] in {"Deployment", "Job"}]


def _parse(words: list[str]) -> None:
    """Raise if these are no command with its options."""
    command: Any = get_command(app)
    context = command.make_context("neff-cache", [], resilient_parsing=True)
    while words and hasattr(command, "list_commands") and (below := command.get_command(context, words[0])):
        command, words = below, words[1:]
    command.make_context(command.name, list(words), resilient_parsing=False)


def test_the_kubernetes_servers_start_with_settings_that_exist_and_fit_the_times_around_them(tmp_path: Path) -> None:
    (text,) = [one["data"]["server.toml"] for one in _documents() if one["kind"] == "ConfigMap"]
    path = tmp_path / "server.toml"
    path.write_text(text)
    settings = configure({}, {}, path).settings
    assert settings.host_names() >= {"neff-cache"}
    pods = _pods()
    assert len(pods) == 3
    for pod in pods:
        (container,) = pod["containers"]
        _parse(container["args"])
        assert {entry["name"] for entry in container["env"]} <= VARIABLES
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert set(mounts) == {volume["name"] for volume in pod["volumes"]}
        assert str(settings.database_file).startswith(mounts["secrets"])
        assert str(settings.bootstrap_token_file).startswith(mounts["secrets"])
        if "readinessProbe" in container and "api" in container["args"]:
            probe = container["readinessProbe"]
            assert settings.drain_seconds >= probe["periodSeconds"] * probe["failureThreshold"]
            stop = settings.drain_seconds + settings.shutdown_seconds
            assert pod["terminationGracePeriodSeconds"] > stop


def test_the_systemd_unit_starts_the_server_with_variables_that_exist() -> None:
    unit = (DEPLOY / "systemd" / "neff-cache.service").read_text()
    assert set(re.findall(r"^Environment=(\w+)=", unit, re.MULTILINE)) <= VARIABLES
    for line in re.findall(r"^ExecStart(?:Pre)?=\S+/neff-cache (.+)$", unit, re.MULTILINE):
        _parse(line.split())
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    fields = Settings.model_fields
    assert int(seconds) > fields["drain_seconds"].default + fields["shutdown_seconds"].default


def test_no_pod_of_ours_gets_variables_that_kubernetes_makes_up_from_services() -> None:
    pods = 0
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if "template" in document.get("spec", {}):
                assert document["spec"]["template"]["spec"]["enableServiceLinks"] is False, path
                pods += 1
    assert pods == 5
