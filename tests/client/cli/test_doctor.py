from __future__ import annotations

import re
import signal
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from client import look_alikes
from client.doctor import table
from client.doctor.base import Row, State, Surroundings, ok, problem
from client.doctor.server import MAX_SKEW
from client.doctor.server import check as check_server
from client.settings import Settings
from tests.support.servers import running_server

if TYPE_CHECKING:
    from client.doctor.base import Finding
    from tests.client.cli.conftest import CommandLine


def _findings(line: CommandLine, check: str, environment: dict[str, str] | None = None) -> list[dict[str, Any]]:
    ran = line.run("doctor", "--json", environment=environment)
    return [found for found in ran.json if found["check"] == check]


def _problems(line: CommandLine, check: str, environment: dict[str, str] | None = None) -> list[str]:
    found = _findings(line, check, environment)
    assert all(one["advice"] for one in found if one["state"] == "problem")
    return [one["text"] for one in found if one["state"] == "problem"]


@pytest.fixture(autouse=True)
def _somewhere_else(alone: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in a folder of a user's, not in the source tree."""
    work = alone.folder / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.delenv("PYTHONPATH", raising=False)


def test_a_machine_in_order_passes_the_gate(shared: CommandLine) -> None:
    if shared.url and shared.url.startswith("/"):
        (shared.folder / "shared").mkdir()
    ran = shared.run("doctor")
    own = [line for line in ran.stdout.splitlines() if not line.split("\t")[1].startswith(("torch", "backend"))]
    assert not [line for line in own if line.startswith("problem")], ran.stdout


def test_rights_latency_and_clock_of_a_server_are_shown(served: CommandLine) -> None:
    text = " ".join(one["text"] for one in _findings(served, "shared cache"))
    for part in ("answers in", "clock", "may read", "may publish", "may hold compile leases"):
        assert part in text
    again = " ".join(one["text"] for one in _findings(served, "shared cache"))
    assert "may hold compile leases" in again


def test_a_token_that_is_refused_is_a_problem(served: CommandLine) -> None:
    (text,) = _problems(served, "shared cache", {"NEURON_CACHE_TOKEN": "wrong" * 10})
    assert "may not read" in text


def test_rights_that_are_too_few_are_problems(alone: CommandLine) -> None:
    with running_server(alone.folder / "server", "--anonymous", "read") as server:
        texts = _problems(alone, "shared cache", {"NEURON_CACHE_URL": server.url})
        assert ["publish" in texts[0], "leases" in texts[1], len(texts)] == [True, True, 2]
        assert not _problems(alone, "shared cache", {"NEURON_CACHE_URL": server.url, "NEURON_CACHE_MODE": "ro"})


def test_a_clock_that_is_wrong_is_a_problem(served: CommandLine) -> None:
    environ = {name: value for name, value in served.environment.items() if value is not None}
    surroundings = Surroundings(environ, Settings.from_environment(environ), now=lambda: time.time() + 2 * MAX_SKEW)
    problems = [found for found in check_server(surroundings) if found.state is State.PROBLEM]
    assert ["clock" in found.text for found in problems] == [True]


def test_a_server_that_is_gone_is_a_problem(alone: CommandLine) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    (text,) = _problems(alone, "shared cache", {"NEURON_CACHE_URL": address})
    assert address in text


def test_a_shared_folder_that_is_not_mounted_is_a_problem(folder: CommandLine) -> None:
    (text,) = _problems(folder, "shared cache")
    assert str(folder.url) in text


def test_a_node_tier_that_others_can_write_is_a_problem(alone: CommandLine) -> None:
    alone.node_dir.mkdir()
    alone.node_dir.chmod(0o777)
    (text,) = _problems(alone, "node tier")
    assert "chmod o-w" in text
    alone.node_dir.chmod(0o700)
    assert not _problems(alone, "node tier")


def test_a_node_tier_that_is_a_link_is_a_problem(alone: CommandLine) -> None:
    (alone.folder / "real").mkdir()
    alone.node_dir.symlink_to(alone.folder / "real")
    assert _problems(alone, "node tier")


@pytest.mark.parametrize("name", ["client.py", "client/__init__.py", "neuron_backend.py"])
def test_a_file_of_the_users_that_hides_our_package_is_named(alone: CommandLine, name: str) -> None:
    path = alone.folder / "work" / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    (text,) = _problems(alone, "shadowing")
    assert str(path) in text


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NEURON_CACHE_DIR", "NEURON_CACHE_NODE_DIR"),
        ("NEURON_CACHE_URLS", "NEURON_CACHE_URL"),
        ("NEURON_CACHE_PROJCT", "NEURON_CACHE_PROJECT"),
        ("NEURON_CACHE_FLAVOUR", "remove it"),
    ],
)
def test_a_setting_that_nobody_reads_is_answered_with_what_was_meant(alone: CommandLine, name: str, meant: str) -> None:
    (found,) = [one for one in _findings(alone, "settings", {name: "/somewhere"}) if one["state"] == "problem"]
    assert name in found["text"]
    assert meant in found["advice"]


@pytest.mark.parametrize(
    ("name", "value", "reader"),
    [
        ("NEURON_COMPILE_CACHE_URL", "s3://bucket/cache", "libneuronxla"),
        ("NEURON_CC_FLAGS", "-O2 --cache_dir=/x", "libneuronxla"),
        ("VLLM_NEURON_REMOTE_CACHE", "/x", "vLLM"),
        ("NEURON_LIBTORCH_REMOTE_CACHE", "/x", "libtorch"),
        ("TORCH_NEURONX_NEFF_CACHE_DIR", "/x", "TorchNeuron"),
    ],
)
def test_a_setting_of_another_cache_is_told_from_ours(alone: CommandLine, name: str, value: str, reader: str) -> None:
    notes = [one for one in _findings(alone, "other caches", {name: value, "PATH": "/none"}) if one["state"] == "note"]
    (found,) = [one for one in notes if name in one["text"]]
    assert reader in found["text"]
    assert f"neff-cache {'import s3://bucket/cache' if '://' in value else 'sync /x'} --layout " in found["advice"]


def test_each_setting_of_another_cache_has_its_line_set_or_not(alone: CommandLine) -> None:
    texts = " ".join(one["text"] for one in _findings(alone, "other caches", {"PATH": "/none"}))
    for name in (
        "NEURON_COMPILE_CACHE_URL",
        "VLLM_NEURON_REMOTE_CACHE",
        "NEURON_LIBTORCH_REMOTE_CACHE",
        "TORCH_NEURONX_NEFF_CACHE_DIR",
    ):
        assert f"{name} is not set" in texts


def test_a_folder_in_the_flags_is_said_to_come_first(alone: CommandLine) -> None:
    environment = {"NEURON_CC_FLAGS": "--cache_dir /old --cache_dir=/new", "NEURON_COMPILE_CACHE_URL": "/unused"}
    texts = [one["text"] for one in _findings(alone, "other caches", environment)]
    assert any(text.startswith("--cache_dir=/new in NEURON_CC_FLAGS") for text in texts)
    assert any(text.startswith("NEURON_COMPILE_CACHE_URL=/unused is not used") for text in texts)


def test_no_password_in_another_caches_address_is_printed(alone: CommandLine) -> None:
    ran = alone.run("doctor", environment={"NEURON_COMPILE_CACHE_URL": "s3://me:secret-of-mine@bucket/x"})
    assert "secret-of-mine" not in ran.stdout + ran.stderr


def test_an_address_without_a_scheme_is_answered_with_a_guess(alone: CommandLine) -> None:
    (text,) = _problems(alone, "shared cache", {"NEURON_CACHE_URL": "cache.example:8080"})
    assert "http://cache.example:8080" in text


def test_a_value_that_means_nothing_is_a_problem(alone: CommandLine) -> None:
    (text,) = _problems(alone, "settings", {"NEURON_CACHE_WAIT_LIMIT": "soon"})
    assert "NEURON_CACHE_WAIT_LIMIT" in text


def test_no_token_is_ever_printed(alone: CommandLine) -> None:
    ran = alone.run("doctor", environment={"NEURON_CACHE_TOKEN": "secret-of-mine"})
    assert "secret-of-mine" not in ran.stdout + ran.stderr
    assert "NEURON_CACHE_TOKEN" in ran.stdout


def test_a_problem_fails_the_gate_and_a_note_does_not(alone: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(*findings: Finding) -> list[Row]:
        return [Row("made up", lambda _: findings)]

    monkeypatch.setattr(table, "rows", lambda: rows(ok("well")))
    assert alone.run("doctor").status == 0
    monkeypatch.setattr(table, "rows", lambda: rows(ok("well"), problem("ill", "do something")))
    ran = alone.run("doctor")
    assert ran.status == 1
    assert "ill -> do something" in ran.stdout


def test_a_check_that_fails_does_not_end_the_examination(alone: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Surroundings) -> list[Finding]:
        raise RuntimeError("out of order")

    monkeypatch.setattr(table, "rows", lambda: [Row("broken", broken), Row("well", lambda _: [ok("well")])])
    ran = alone.run("doctor", "--json")
    assert ran.status == 1
    assert [one["check"] for one in ran.json] == ["broken", "well"]
    assert "out of order" in ran.json[0]["text"]


def test_every_setting_that_something_reads_is_known_to_doctor() -> None:
    root = Path(look_alikes.__file__).resolve().parents[1]
    read = set(re.findall(r"NEURON_CACHE_[A-Z_]*[A-Z]", (root / "docs" / "settings.md").read_text()))
    for package in ("client", "neuron_backend"):
        for path in (root / package).rglob("*.py"):
            if path != Path(look_alikes.__file__):
                read |= set(re.findall(r"\bNEURON_CACHE_[A-Z_]*[A-Z]\b", path.read_text()))
    fields = re.findall(r'read\.\w+\("([A-Z_]+)"', (root / "client" / "settings.py").read_text())
    assert fields
    read |= {f"NEURON_CACHE_{name}" for name in fields}
    assert read <= look_alikes.KNOWN
    assert read >= look_alikes.KNOWN


def _steps(ran: Any) -> dict[str, Any]:
    return {step["step"]: step for step in ran.json["way"]}


def test_status_walks_the_way_of_a_job_and_says_each_step(served: CommandLine) -> None:
    ran = served.run("status", "--json")
    assert (ran.status, ran.stderr) == (0, "")
    steps = _steps(ran)
    assert list(steps) == ["name", "connection", "answer", "token", "empty token", "read", "store", "publish", "lease"]
    assert all(step["state"] in {"ok", "note"} and step["seconds"] > 0 for step in steps.values())
    shown = served.run("status").stdout
    assert all(f"  {name}\t" in shown and "ms)" in shown for name in steps)
    # nothing was stored on the way, and the lease is free again
    assert _steps(served.run("status", "--json"))["lease"]["text"].startswith("we may hold")


def test_status_fails_where_a_job_would_be_refused(served: CommandLine) -> None:
    ran = served.run("status", "--json", environment={"NEURON_CACHE_TOKEN": "wrong" * 10})
    assert ran.status == 1
    assert _steps(ran)["token"]["state"] == "problem"
    assert "NEURON_CACHE_TOKEN" in ran.stderr


def test_status_fails_where_the_servers_name_is_not_on_its_list(
    alone: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def everything_is_here(_host: str, port: int, *_: object, **__: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    with running_server(alone.folder / "server") as server:
        monkeypatch.setattr(socket, "getaddrinfo", everything_is_here)
        url = f"http://cache.elsewhere.example:{server.url.rpartition(':')[2]}"
        environment = {"NEURON_CACHE_URL": url, "NEURON_CACHE_TOKEN": server.token}
        ran = alone.run("status", "--json", environment=environment)
        assert ran.status == 1
        assert "wrong_host" in _steps(ran)["token"]["text"]
        assert "--allowed-host" in ran.stderr
        assert any("wrong_host" in text for text in _problems(alone, "shared cache", environment))


def test_a_full_quota_is_no_right_to_publish(alone: CommandLine) -> None:
    with running_server(alone.folder / "server") as server:
        here = {"NEURON_CACHE_URL": server.url, "NEURON_CACHE_TOKEN": server.token}
        assert not _problems(alone, "shared cache", here)
        assert alone.run("admin", "quota", "--project", "default", "--max-entries", "0", environment=here).status == 0
        (text,) = _problems(alone, "shared cache", here)
        assert "quota of project default is used up" in text
        ran = alone.run("status", "--json", environment=here)
        assert (ran.status, _steps(ran)["publish"]["state"]) == (1, "problem")
        assert alone.run("status", environment={**here, "NEURON_CACHE_MODE": "ro"}).status == 0


def test_a_store_that_is_away_and_a_server_that_is_frozen_fail_in_time(alone: CommandLine) -> None:
    with running_server(alone.folder / "server") as server:
        here = {"NEURON_CACHE_URL": server.url, "NEURON_CACHE_TOKEN": server.token}
        store = server.data / "store"
        store.rename(server.data / "elsewhere")
        store.write_text("no folder")
        ran = alone.run("status", "--json", environment=here)
        assert (ran.status, _steps(ran)["store"]["state"]) == (1, "problem")
        store.unlink()
        (server.data / "elsewhere").rename(store)
        assert alone.run("status", environment=here).status == 0
        server.process.send_signal(signal.SIGSTOP)
        try:
            ran = alone.run("status", "--json", environment=here)
            assert list(_steps(ran))[-1] == "answer"
            assert ran.status == 3
        finally:
            server.process.send_signal(signal.SIGCONT)


def test_a_server_that_is_open_to_all_is_found_by_whoever_looks(alone: CommandLine) -> None:
    class Open(BaseHTTPRequestHandler):
        """Answers as a server of an earlier version whose first token was set and empty."""

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            body = b'{"name": "bootstrap", "revoked": []}'
            missing = "/entries/" in self.path or "/artifacts/" in self.path
            self.send_response(404 if missing else 200)
            self.send_header("Content-Type", "application/problem+json" if missing else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_PUT(self) -> None:
            self.do_GET()

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Open) as origin:
        thread = threading.Thread(target=origin.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{origin.server_port}"
            texts = _problems(alone, "shared cache", {"NEURON_CACHE_URL": url, "NEURON_CACHE_TOKEN": "x" * 40})
        finally:
            origin.shutdown()
            thread.join()
    assert any("open to all" in text for text in texts)


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:1/?token=s3cr3t",
        "http://localhost:1/#s3cr3t",
        "http://user:s3cr3t@localhost:1/",
        "s3://bucket/x?token=s3cr3t",
        "localhost:8080?token=s3cr3t",
        "user:s3cr3t@localhost:8080",
    ],
)
def test_a_secret_in_an_address_reaches_no_terminal_and_no_log(alone: CommandLine, url: str) -> None:
    for command in ("doctor", "status"):
        ran = alone.run(command, environment={"NEURON_CACHE_URL": url})
        assert "s3cr3t" not in ran.stdout + ran.stderr
