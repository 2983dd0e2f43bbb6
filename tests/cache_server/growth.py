"""What the tests of growth share: servers on either database, and entries of a certain age."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.cache_server.harness import FakeClock, build, document

if TYPE_CHECKING:
    from tests.cache_server.harness import Built, InProcess

DAY = 86400.0
GRACE = 600.0


def made(name: str, size: int = 100, *, seconds: float = 10.0, version: str = "2.20.1+ab", **options: Any) -> Built:
    """An entry with one output of ``size`` bytes."""
    wanted = {**document(name), "compiler": {"name": "neuronx-cc", "version": version}}
    built = build(name, (name.encode() * size)[:size], log=None, key_document=wanted, **options)
    object.__setattr__(built.entry, "compile_seconds", seconds)
    return built


def publish(server: InProcess, *entries: Built) -> None:
    for built in entries:
        answer = server.publish(built)
        assert answer.status_code == 201, answer.text


def pass_time(server: InProcess, seconds: float = 2 * GRACE) -> None:
    clock = server.clock
    assert isinstance(clock, FakeClock)
    clock.now += seconds


def standing(server: InProcess, *entries: Built) -> list[bool]:
    return [server.call("HEAD", built.artifact).status_code == 200 for built in entries]


def collect(server: InProcess, *, dry_run: bool = False, project: str | None = None) -> dict[str, Any]:
    answer = server.call("POST", "/admin/v1/collect", json={"dry_run": dry_run, "project": project})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def set_quota(server: InProcess, project: str = "default", **limit: int) -> None:
    assert server.call("PUT", f"/admin/v1/projects/{project}/quota", json=limit).status_code == 204


def set_rules(server: InProcess, where: str = "server", **rules: Any) -> None:
    assert server.call("PUT", f"/admin/v1/{where}/rules", json=rules).status_code == 204
