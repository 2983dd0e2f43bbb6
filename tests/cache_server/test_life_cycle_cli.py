"""The commands around a server's life, as an operator types them."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from cache_server.database.migrate import revision_of
from cache_server.settings import Settings
from client.cli.main import app
from client.errors import ConfigurationError
from client.s3.url import BucketUrl
from tests.cache_server.harness import InProcess, build, problem
from tests.fakes.waiting import HANG_SECONDS
from tests.support.postgres import postgres
from tests.support.s3 import all_objects, seaweedfs, use_credentials
from tests.support.s3_faults import fault_proxy

if TYPE_CHECKING:
    from collections.abc import Callable


def _run(*words: str) -> tuple[int, str, str]:
    ran = CliRunner().invoke(app, ["admin", *words])
    if isinstance(ran.exception, ConfigurationError):
        return 2, ran.stdout, str(ran.exception)
    assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
    return ran.exit_code, ran.stdout, ran.stderr


def _check(*words: str) -> tuple[int, Any]:
    status, out, _ = _run("check-config", "--json", *words)
    return status, json.loads(out)


def test_check_config_passes_what_would_start_and_writes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    status, found = _check("--data-dir", str(folder))
    assert status == 0
    assert {part["state"] for part in found["parts"].values()} == {"ok"}
    assert found["settings"]["data_dir"] == {"value": str(folder), "source": "command line"}
    assert not folder.exists()


def test_check_config_tells_of_all_that_is_wrong_in_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "server.toml"
    config.write_text(
        'host = "0.0.0.0"\nrole = "api"\ntls_cert = "/nowhere.pem"\nidentity_file = "/nowhere.toml"\n'
        f'database = "postgresql://user:secret@127.0.0.1:1/name"\nstore = "{config}"\n'
    )
    monkeypatch.setenv("NEFF_CACHE_PROT", "1")
    status, found = _check("--config", str(config))
    assert status == 1
    assert {part for part, said in found["parts"].items() if said["state"] == "failed"} == {
        "host names", "role", "tls", "identities", "store", "database", "first token",
    }  # fmt: skip
    assert "NEFF_CACHE_PORT" in found["warnings"][0]
    assert "secret@" not in json.dumps(found)


def test_check_config_sees_that_a_start_could_not_use_the_schema(server: InProcess) -> None:
    folder = str(server.service.settings.data_dir)
    assert _check("--data-dir", folder)[1]["parts"]["database"]["state"] == "ok"
    with sqlite3.connect(f"{folder}/cache.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '20990101_0001'")
    connection.close()
    status, found = _check("--data-dir", folder)
    assert status == 1
    assert "20990101_0001" in found["parts"]["database"]["said"]


def _step_names(said: str) -> list[str]:
    return re.findall(r"([a-z ]+?) [0-9]+\.[0-9] ms", said.partition(": ")[2].replace(", ", ","))


def test_check_config_writes_reads_and_deletes_in_the_bucket_and_in_the_database_what_a_server_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_credentials(monkeypatch)
    url = seaweedfs().new_url()
    with postgres().new_database() as database:
        assert _run("migrate", "--data-dir", str(tmp_path), "--database", database)[0] == 0
        status, found = _check("--data-dir", str(tmp_path), "--store", url, "--database", database)
        assert status == 0, found
        assert _step_names(found["parts"]["store"]["said"]) == [
            "list", "write", "read back", "write in parts", "delete", "list uploads",
        ]  # fmt: skip
        assert _step_names(found["parts"]["database"]["said"]) == ["write", "read back", "roll back"]
    assert all_objects(url) == []


@pytest.mark.parametrize(
    ("method", "target", "right"),
    [
        ("PUT", "tmp-", "s3:PutObject"),
        ("GET", "tmp-", "s3:GetObject"),
        ("DELETE", "tmp-(?!.*uploadId)", "s3:DeleteObject"),
    ],
)
def test_check_config_says_no_where_a_bucket_refuses_what_a_server_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, target: str, right: str
) -> None:
    use_credentials(monkeypatch)
    prefix = BucketUrl.parse(seaweedfs().new_url()).prefix
    with fault_proxy(seaweedfs()) as proxy:
        proxy.break_next(method, target, status=403, code="AccessDenied", times=1 << 30)
        status, found = _check("--data-dir", str(tmp_path), "--store", proxy.url(prefix))
    assert status == 1
    assert found["parts"]["store"]["state"] == "failed"
    assert right in found["parts"]["store"]["said"]


def test_check_config_says_no_where_a_database_takes_no_lease(server: InProcess) -> None:
    folder = str(server.service.settings.data_dir)
    with sqlite3.connect(f"{folder}/cache.db") as connection:
        assert _check("--data-dir", folder)[0] == 0
        assert connection.execute("SELECT count(*) FROM leases").fetchone() == (0,)
        connection.execute("CREATE TRIGGER full BEFORE INSERT ON leases BEGIN SELECT RAISE(ABORT, 'no room'); END")
    connection.close()
    status, found = _check("--data-dir", folder)
    assert status == 1
    assert "no room" in found["parts"]["database"]["said"]


def test_a_backup_is_whole_although_the_server_writes(server: InProcess, tmp_path: Path) -> None:
    folder, target = str(server.service.settings.data_dir), tmp_path / "backup.db"
    server.publish(build("before"))
    stop = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        while not stop.is_set():
            assert server.publish(build(f"during-{written}")).status_code == 201
            written += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        status, _, said = _run("backup", str(target), "--data-dir", folder)
    finally:
        stop.set()
        writer.join(HANG_SECONDS)
    assert status == 0, said
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with sqlite3.connect(target) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        rows = connection.execute("SELECT count(*) FROM entries").fetchone()[0]
    connection.close()
    assert 1 <= rows <= written + 1
    assert [path.name for path in tmp_path.iterdir() if "backup" in path.name] == ["backup.db"]


def test_a_backup_never_overwrites_and_says_what_it_cannot_copy(server: InProcess, tmp_path: Path) -> None:
    folder, target = str(server.service.settings.data_dir), tmp_path / "backup.db"
    target.write_text("an older one")
    assert f"{target} is there already" in _run("backup", str(target), "--data-dir", folder)[2]
    assert target.read_text() == "an older one"
    assert "there is no database" in _run("backup", str(tmp_path / "b"), "--data-dir", str(tmp_path / "nowhere"))[2]
    assert "pg_dump" in _run("backup", str(tmp_path / "b"), "--database", "postgresql://u@h/n")[2]
    assert "failed" in _run("backup", str(tmp_path / "no" / "folder"), "--data-dir", folder)[2]


def test_migrate_makes_the_schema_that_a_server_without_that_right_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_server: Callable[..., InProcess]
) -> None:
    use_credentials(monkeypatch)
    with postgres().new_database() as url:
        with pytest.raises(ConfigurationError, match="neff-cache admin migrate"):
            make_server(database=url, migrate=False, threads=4)
        tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        assert postgres().execute(tables, database=url.rpartition("/")[2]) == [(0,)]
        status, out, _ = _run("migrate", "--json", "--database", url)
        assert status == 0
        made = json.loads(out)
        assert made["before"] is None
        server = make_server(database=url, migrate=False, threads=4)
        assert revision_of(server.service.database.engine) == made["after"]
        assert server.publish(build()).status_code == 201
        again = json.loads(_run("migrate", "--json", "--database", url)[1])
        assert again == {"before": made["after"], "after": made["after"]}
        server.close()


def test_migrate_leaves_a_database_alone_that_a_server_on_sqlite_uses(server: InProcess, tmp_path: Path) -> None:
    folder = str(server.service.settings.data_dir)
    assert "another neff-cache server" in _run("migrate", "--data-dir", folder)[2]
    assert "there is no database" in _run("migrate", "--data-dir", str(tmp_path / "nowhere"))[2]
    server.close()
    assert _run("migrate", "--data-dir", folder)[0] == 0


def test_one_round_of_collection_needs_no_server(server: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(server.service.settings.data_dir)
    for name in ("a", "b", "c"):
        server.publish(build(name))
    server.call("PUT", "/admin/v1/projects/default/quota", json={"max_entries": 1})
    assert "another neff-cache server" in _run("gc", "--data-dir", folder)[2]
    server.close()
    monkeypatch.setenv("NEFF_CACHE_COLLECT_GRACE_SECONDS", "0")
    status, out, _ = _run("gc", "--json", "--data-dir", folder)
    done = json.loads(out)
    assert (status, done["state"], done["entries"]) == (0, "done", 2)


class TestRoles:
    """Servers on one PostgreSQL and one bucket that share the work."""

    @pytest.fixture(autouse=True)
    def _shared(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        use_credentials(monkeypatch)
        with postgres().new_database() as url:
            self.shared = {"database": url, "store": seaweedfs().new_url(), "threads": 4}
            yield

    def test_a_collector_answers_probes_and_metrics_and_nothing_else(
        self, make_server: Callable[..., InProcess]
    ) -> None:
        collector = make_server(role="collector", **self.shared)
        for path in ("/healthz", "/readyz", "/metrics"):
            assert collector.call("GET", path).status_code == 200
        found = collector.call("GET", "/admin/v1/readiness").json()
        assert (found["role"], found["ready"], set(found["parts"].values())) == ("collector", True, {"ok"})
        built = build()
        for method, path in (("GET", built.artifact), ("PUT", built.blob()), ("GET", "/"), ("GET", "/admin/v1/stats")):
            assert problem(collector.call(method, path)) == (404, "not_found")
        assert problem(collector.call("GET", built.artifact, token=None)) == (401, "unauthorized")
        collector.close()

    def test_an_api_server_never_takes_the_duty_from_a_collector(
        self, make_server: Callable[..., InProcess], tmp_path: Path
    ) -> None:
        fast = {"sweep_seconds": 0.1, "collect_seconds": 0.1, "collect_grace_seconds": 0.0}
        api = make_server(role="api", **self.shared, **fast)
        names = _with_lifespan(api)
        assert not {"_sweep_forever", "keep_collecting"} & names
        assert api.service.scrubbing._thread is None
        collector = make_server(role="collector", folder=tmp_path / "other", **self.shared, **fast)
        assert {"_sweep_forever", "keep_collecting"} <= _with_lifespan(collector)
        assert collector.service.duty.is_ours()
        for server in (api, collector):
            server.close()


def _with_lifespan(server: InProcess) -> set[str]:
    """Return the names of what runs periodically on a server of this role."""
    from cache_server import periodic  # noqa: PLC0415 - only here

    found = list(periodic.tasks(server.service))
    for task in found:
        task.close()
    return {task.__name__ for task in found}


@pytest.mark.parametrize("role", ["api", "collector"])
def test_a_role_that_would_leave_work_undone_is_refused(role: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"--role {role}"):
        Settings(role=role, data_dir=tmp_path).check_role()


def test_a_newer_schema_suits_a_server_that_runs_and_an_older_one_does_not(either: InProcess) -> None:
    engine = either.service.database.engine
    with engine.begin() as connection:
        current = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '20990101_0001'")
    assert either.call("GET", "/readyz").status_code == 200
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '20261130_0001'")
    answer = either.call("GET", "/readyz", token=None)
    assert problem(answer) == (503, "not_ready")
    assert "20261130" not in answer.text
    assert "neff-cache admin migrate" in either.call("GET", "/admin/v1/readiness").json()["parts"]["schema"]
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :current"), {"current": current})
    assert either.call("GET", "/readyz").status_code == 200


@pytest.mark.once  # another user has to reach the interpreter
@pytest.mark.parametrize("broken", ["data folder", "store", "database", "lock", "link"])
def test_check_config_says_no_where_a_server_could_not_write(broken: str) -> None:
    # pytest closes its own folder to other users at every start
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        _check_refused(folder, broken)


def _check_refused(folder: Path, broken: str) -> None:
    data = folder / "data"
    InProcess(folder).close()
    config = folder / "config.toml"
    config.write_text(f'data_dir = "{data}"\nbootstrap_token = "{"t" * 40}"\n')
    assert _as_nobody(folder, config)[0] == 0
    if broken == "data folder":
        data.chmod(0o555)
    elif broken == "store":
        (data / "store").chmod(0o555)
    elif broken == "database":
        (data / "cache.db").chmod(0o444)
    elif broken == "lock":
        (data / ".server.lock").chmod(0o444)
    else:
        (data / "store").rename(folder / "gone")
        (data / "store").symlink_to(folder / "nowhere")
    status, out = _as_nobody(folder, config)
    assert status == 1, out
    said = " ".join(part["said"] for part in json.loads(out)["parts"].values() if part["state"] == "failed")
    assert str(data) in said


def _as_nobody(folder: Path, config: Path) -> tuple[int, str]:
    """Run the command as a user whom permissions bind, who owns what lies in the folder."""
    command = [sys.executable, "-m", "client.cli", "admin", "check-config", "--json", "--config", str(config)]
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, 65534, 65534, follow_symlinks=False)
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]
    environ = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "c"), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_SECONDS, env=environ)
    return ran.returncode, ran.stdout or ran.stderr
