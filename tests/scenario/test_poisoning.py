"""Who may put code into a job, tried out: by token, by forged entries, by a store that lies.

Run with ``-s`` for what client and server did, as a table.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import io
import json
import logging
import os
import pickle
import re
import tarfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zstandard
from typer.testing import CliRunner

from client.bundles import BundleError, read
from client.cache import Cache
from client.cli.main import app
from client.errors import Denied, Refused, WireError
from client.pulling import SILENT
from client.record import record_line
from client.signing.keys import PrivateKey
from client.signing.statements import sign_entry
from client.transports.http import HttpTransport
from client.wire import Entry, Output
from tests.client.programs import build, compiled, document, entry_of
from tests.client.signing.signers import line, promotion, save, signed, write_list
from tests.client.transports.raw_server import RawServer, answer
from tests.support.faulty_server import rightly
from tests.support.http_calls import Caller
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from client.artifact import Artifact
    from tests.support.servers import Server

CI, RELEASE, STRANGER, LEAKED = (PrivateKey.generate() for _ in range(4))
BUILDERS = line(CI, "ci", projects=("staging",))
PROMOTERS = line(RELEASE, "release", projects=("prod",))
GONE = line(LEAKED, "leaked", revoked="2026-11-01T00:00:00Z")


def tell(attempt: str, server: str, client: str) -> None:
    print(f"{attempt:<66} | {server:<22} | {client}")  # noqa: T201 - the table that -s shows


@dataclass
class Site:
    """A server with projects ``staging`` and ``prod``, each with a writer of its own, and a list of who is trusted."""

    server: Server
    folder: Path
    ci: str
    release: str
    trusted: Path

    @contextmanager
    def transport(self, token: str, project: str) -> Iterator[HttpTransport]:
        transport = HttpTransport(self.server.url, project, {"NEURON_CACHE_TOKEN": token})
        yield transport
        transport.close()

    def job(self, name: str, project: str, url: str | None = None, **more: str) -> Cache:
        """Return the cache of a job that runs nothing but what is vouched for."""
        environ = {
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": str(self.server.config),
            "NEURON_CACHE_NODE_DIR": str(self.folder / "node" / name),
            "NEURON_CACHE_URL": url or self.server.url,
            "NEURON_CACHE_TOKEN": self.release,
            "NEURON_CACHE_PROJECT": project,
            "NEURON_CACHE_MODE": "ro",
            "NEURON_CACHE_TRUSTED_KEYS": str(self.trusted),
            "NEURON_CACHE_SIGNATURES": "require",
            **more,
        }
        return Cache.from_environment(environ)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with running_server(folder) as server:
        admin = Caller(server.url, server.token)

        def token(label: str, grants: list[dict[str, Any]]) -> str:
            made = admin.call("POST", "/admin/v1/tokens", {"label": label, "grants": grants})
            assert made.status == 201, made
            return str(made.json()["token"])

        rights = ["read", "write", "lease"]
        ci = token("ci", [{"scopes": rights, "project": "staging"}, {"scopes": ["read"], "project": "prod"}])
        release = token("release", [{"scopes": ["read"], "project": "staging"}, {"scopes": rights, "project": "prod"}])
        for key in (BUILDERS, PROMOTERS, GONE):
            for project in ("staging", "prod"):
                path = f"/v1/{project}/trust/keys/{key.key_id}"
                assert admin.call("PUT", path, {"line": key.line}).status == 204
        assert admin.call("PUT", "/v1/prod/trust", {"signatures": "required"}).status == 204
        yield Site(server, folder, ci, release, write_list(folder / "trusted", BUILDERS, PROMOTERS, GONE))


def refusal(call: Any) -> str:
    """Return how the server refused a call, or "taken"."""
    try:
        call()
    except Refused as error:
        return f"{error.status} {error.name}"
    except Denied as error:
        return "403 forbidden" if "403" in str(error) else "404 not_found"
    return "taken"


def ran(cache: Cache, asked: Any) -> str:
    """Have a job look a program up; return what it ran."""
    made: list[bytes] = []

    def compile_it() -> Any:
        result = compiled()
        made.append(result.neff)
        return result

    found: Artifact = cache.get_or_compile(asked, compile_it)
    cache.close()
    return "compiled its own" if made == [found.neff] else f"ran the {found.source} one"


def test_the_writer_of_staging_never_writes_prod(site: Site):
    built, asked = compiled(), document("wrong door")
    entry = signed(CI, asked, built, "prod")
    with site.transport(site.ci, "prod") as transport:
        said = refusal(lambda: transport.publish(entry, built.outputs, None))
    assert said == "403 forbidden"
    caller = Caller(site.server.url, site.ci)
    path = f"/v1/prod/graph/entries/{asked.key}"
    assert caller.call("DELETE", path).status == 403
    record = promotion(replace(entry, project="staging"), "prod", CI)
    assert caller.call("POST", "/v1/prod/promotions", {"from": "staging", "records": [record.to_json()]}).status == 403
    assert caller.call("GET", f"/v1/other/graph/entries/{asked.key}").status == 404
    tell("writer of staging publishes, deletes, promotes in prod", said, ran(site.job("door", "prod"), asked))


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("unsigned", "422 signature_required"),
        ("by an unknown key", "422 signature_invalid"),
        ("by a revoked key", "422 signature_invalid"),
        ("by a key of another project", "422 signature_invalid"),
        ("of another entry (replayed under this key)", "422 signature_invalid"),
        ("of another build (same key)", "422 signature_invalid"),
        ("right, by the project's own key", "taken"),
    ],
)
def test_a_stolen_write_token_is_not_enough(site: Site, how: str, expected: str):
    asked, built = document(f"stolen {how}"), compiled()
    plain = entry_of(asked, built.outputs, "prod")
    other = signed(RELEASE, document("other"), project="prod")
    entry = {
        "unsigned": plain,
        "by an unknown key": signed(STRANGER, asked, built, "prod"),
        "by a revoked key": signed(LEAKED, asked, built, "prod"),
        "by a key of another project": signed(CI, asked, built, "prod"),
        "of another entry (replayed under this key)": replace(plain, signature=other.signature),
        "of another build (same key)": replace(plain, signature=signed(RELEASE, asked, project="prod").signature),
    }.get(how) or signed(RELEASE, asked, built, "prod")
    with site.transport(site.release, "prod") as transport:
        said = refusal(lambda: transport.publish(entry, built.outputs, None))
    assert said == expected
    done = ran(site.job(how[:12], "prod"), asked)
    assert done == ("ran the remote one" if expected == "taken" else "compiled its own")
    tell(f"PUT to prod, signed {how}" if how != "unsigned" else "PUT to prod, unsigned", said, done)


def test_the_bytes_of_another_program_are_refused_under_a_right_key(site: Site):
    asked, built = document("other bytes"), compiled()
    entry = signed(RELEASE, asked, built, "prod")
    lying = {**built.outputs, "model.neff": build(len(built.neff))[: len(built.neff)].ljust(len(built.neff), b"x")}
    with site.transport(site.release, "prod") as transport:
        said = refusal(lambda: transport.publish(entry, lying, None))
    assert said == "422 wrong_digest"
    tell("right key and digest, other bytes", said, ran(site.job("bytes", "prod"), asked))


def test_an_entry_whose_document_is_not_its_keys_is_refused(site: Site):
    asked, built = document("the one"), compiled()
    wrong = replace(entry_of(asked, built.outputs, "prod"), key_document=document("the other").to_json())
    wrong = sign_entry(wrong, RELEASE)
    caller = Caller(site.server.url, site.release)
    said = caller.call("PUT", f"/v1/prod/graph/entries/{asked.key}", wrong.to_json())
    assert (said.status, said.name) == (422, "wrong_key")
    tell("document does not hash to its key", "422 wrong_key", ran(site.job("document", "prod"), asked))


def test_only_a_promotion_brings_an_entry_of_ci_to_prod(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked, built = document("promoted"), compiled()
    entry = signed(CI, asked, built, "staging")
    with site.transport(site.ci, "staging") as transport:
        assert transport.publish(entry, built.outputs, None).created
    assert ran(site.job("before", "prod"), asked) == "compiled its own"
    plan = tmp_path / "plan"
    plan.write_bytes(record_line(entry, ""))
    for name, value in {
        "NEURON_CACHE_URL": site.server.url,
        "NEURON_CACHE_TOKEN": site.release,
        "NEURON_CACHE_TRUSTED_KEYS": str(site.trusted),
        "NEURON_CACHE_SIGNING_KEY": str(save(STRANGER, tmp_path / "stranger")),
    }.items():
        monkeypatch.setenv(name, value)
    words = ["promote", str(plan), "--from", "staging", "--to", "prod", "--json"]
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 1, refused.output
    (result,) = json.loads(refused.stdout)["results"]
    assert (result["state"], result["name"]) == ("refused", "signature_invalid")
    tell("promoted by a stranger's key", result["name"], ran(site.job("stranger", "prod"), asked))
    done = CliRunner().invoke(app, [*words, "--key", str(save(RELEASE, tmp_path / "release"))])
    assert done.exit_code == 0, done.output
    after = ran(site.job("after", "prod"), asked)
    assert after == "ran the remote one"
    tell("promoted by release", "promoted", after)
    shown = CliRunner().invoke(app, ["show", "--project", "prod", f"graph/{entry.key}"])
    assert "trusted as ci" in shown.stdout
    assert "from staging to prod" in shown.stdout


# A store that lies: nobody checks what is put there, and it may answer anything


def hostile(how: str, asked: Any) -> tuple[Entry | None, bytes, str | None]:
    """Return the entry, the bytes and the header with which a malicious store answers."""
    built, other = compiled(), compiled()
    good, plain = signed(RELEASE, asked, built, "prod"), entry_of(asked, other.outputs, "prod")
    stolen = signed(RELEASE, document("another one"), built, "prod")
    payload = pickle.dumps(Bomb())
    climbing = {**good.to_json(), "outputs": [{**good.outputs[0].to_json(), "name": "../../evil"}]}
    entries: dict[str, tuple[Entry, bytes]] = {
        "other bytes under a signed entry": (good, other.neff),
        "a forged entry with the right digest of other bytes": (plain, other.neff),
        "that entry, with the signature of the good one": (replace(plain, signature=good.signature), other.neff),
        "the signature taken off": (replace(good, signature=None), built.neff),
        "a signed entry of another key": (stolen, built.neff),
        "that entry, its key rewritten": (replace(stolen, key=asked.key, key_document=None), built.neff),
        "an entry of staging, its project rewritten": (
            replace(signed(CI, asked, built, "staging"), project="prod"),
            built.neff,
        ),
        "an entry by a revoked key": (signed(LEAKED, asked, built, "prod"), built.neff),
        "an output of 8 EiB": (replace(plain, outputs=(Output("model.neff", "0" * 64, 8 << 60),)), b""),
        "an output of 4 PiB, signed": (
            sign_entry(replace(plain, outputs=(Output("model.neff", "0" * 64, 4 << 50),)), RELEASE),
            b"",
        ),
        "a pickle in place of the program": (
            replace(good, outputs=(Output("model.neff", hashlib.sha256(payload).hexdigest(), len(payload)),)),
            payload,
        ),
    }
    headers = {
        "an output called ../../evil": json.dumps(climbing).encode(),
        "a pickle in place of the entry": payload,
    }
    if how in headers:
        return None, built.neff, base64.urlsafe_b64encode(headers[how]).decode()
    return *entries[how], None


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {os.environ.get('POISON_MARK', '/nonexistent/mark')}",)


LIES = {
    "other bytes under a signed entry": "should hash to",
    "a forged entry with the right digest of other bytes": "it is not signed",
    "that entry, with the signature of the good one": "it is not what release",
    "the signature taken off": "it is not signed",
    "a signed entry of another key": "was not asked for",
    "that entry, its key rewritten": "it is not what release",
    "an entry of staging, its project rewritten": "ci (.*) does not speak for graph in project prod",
    "an entry by a revoked key": "which was revoked",
    "an output of 8 EiB": "too large",
    "an output of 4 PiB, signed": "is said to hold 4503599627370496 bytes",
    "an output called ../../evil": "no output name",
    "a pickle in place of the entry": "header cannot be read",
    "a pickle in place of the program": "it is not what release",
}
"""What a malicious store answers, and what the job says of it."""


@pytest.mark.parametrize("how", LIES)
def test_a_store_that_lies_makes_a_job_compile_and_nothing_worse(
    site: Site, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    mark = tmp_path / "mark"
    monkeypatch.setenv("POISON_MARK", str(mark))
    asked = document(how)
    entry, neff, header = hostile(how, asked)
    honest = rightly({})

    def script(request: Any, sock: Any) -> bytes | None:
        if "/artifacts/" in request.target:
            shown = header if entry is None else entry.to_header()
            return answer(200, neff, Neff_Entry=shown or "")
        return honest(request, sock)

    with RawServer(script) as liar:
        done = ran(site.job(str(tmp_path), "prod", liar.url), asked)
    assert done == "compiled its own"
    assert not mark.exists()
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    (reason,) = [found[0] for text in said if (found := re.search(LIES[how], text))]
    tell(f"store answers {how}", "(the attacker)", f"{done}: {reason}")
    # nothing of it is on this node either: the next process asks again, and finds nobody
    assert ran(site.job(str(tmp_path), "prod", "http://127.0.0.1:1"), asked) == "compiled its own"


def test_a_program_that_nobody_vouches_for_is_not_even_fetched(site: Site):
    asked, size = document("large"), 64 << 20
    plain = entry_of(asked, compiled().outputs, "prod")
    huge = replace(plain, outputs=(Output("model.neff", "0" * 64, size),))
    sent = []

    def script(request: Any, sock: Any) -> bytes | None:
        if "/artifacts/" not in request.target:
            return rightly({})(request, sock)
        head = answer(200, b"", length=size, Neff_Entry=huge.to_header() or "")
        sock.sendall(head)
        try:
            for _ in range(size >> 20):
                sock.sendall(bytes(1 << 20))
                sent.append(1)
        except OSError:
            return None
        return b""

    with RawServer(script) as liar:
        assert ran(site.job("large", "prod", liar.url), asked) == "compiled its own"
    assert len(sent) < size >> 21


@pytest.mark.soak
def test_the_same_lies_are_believed_without_a_list_of_keys(site: Site, tmp_path: Path):
    asked = document("no list")
    entry, neff, _ = hostile("a forged entry with the right digest of other bytes", asked)
    assert entry is not None
    with RawServer(rightly({entry.key: (entry, neff)})) as liar:
        cache = site.job("no list", "prod", liar.url, NEURON_CACHE_TRUSTED_KEYS="", NEURON_CACHE_SIGNATURES="")
        done = ran(cache, asked)
    assert done == "ran the remote one"
    tell("the same without NEURON_CACHE_TRUSTED_KEYS", "(the attacker)", done)


def test_nothing_that_comes_from_elsewhere_is_ever_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mark = tmp_path / "mark"
    monkeypatch.setenv("POISON_MARK", str(mark))
    bomb = pickle.dumps(Bomb())
    with pytest.raises(WireError):
        Entry.from_header(base64.urlsafe_b64encode(bomb).decode())
    plan, bundle = tmp_path / "plan", tmp_path / "bundle"
    plan.write_bytes(bomb)
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w") as members:
        info = tarfile.TarInfo("manifest.json")
        info.size = len(bomb)
        members.addfile(info, io.BytesIO(bomb))
    bundle.write_bytes(zstandard.ZstdCompressor().compress(inner.getvalue()))
    with pytest.raises(BundleError):
        list(read(bundle, progress=SILENT))
    checked = CliRunner().invoke(app, ["check", str(plan), "--url", str(tmp_path)])
    assert checked.exit_code == 2
    node = tmp_path / "node"
    cache = Cache.from_environment({"HOME": str(tmp_path), "NEURON_CACHE_NODE_DIR": str(node)})
    asked = document("unpickled")
    cache.get_or_compile(asked, compiled)
    cache.close()
    next(node.rglob("entry.json")).write_bytes(bomb)
    again = Cache.from_environment({"HOME": str(tmp_path), "NEURON_CACHE_NODE_DIR": str(node)})
    assert ran(again, asked) == "compiled its own"
    assert not mark.exists()
    tell("pickles as header, plan, bundle, entry.json", "(files)", "refused, nothing was run")


def test_no_module_of_ours_can_unpickle():
    root = Path(__file__).resolve().parents[2]
    loads = []
    for package in ("client", "cache_server"):
        for path in (root / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = (
                    [alias.name for alias in node.names]
                    if isinstance(node, ast.Import)
                    else [str(node.module)]
                    if isinstance(node, ast.ImportFrom)
                    else []
                )
                loads += [
                    f"{path.name}: {name}"
                    for name in names
                    if name.split(".")[0] in {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
                ]
    assert loads == []


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A bundle of one signed and one unsigned entry, out of a shared folder; and an empty node tier's folder."""
    shared = tmp_path / "shared"
    shared.mkdir()
    environ = {"HOME": str(tmp_path), "NEURON_CACHE_URL": str(shared), "NEURON_CACHE_NODE_DIR": str(tmp_path / "maker")}
    record = tmp_path / "plan"
    for name, more in (("a", {"NEURON_CACHE_SIGNING_KEY": str(save(STRANGER, tmp_path / "key"))}), ("b", {})):
        cache = Cache.from_environment({**environ, **more, "NEURON_CACHE_RECORD": str(record)})
        cache.get_or_compile(document(name), compiled)
        cache.close()
    file = tmp_path / "out.bundle"
    monkeypatch.setenv("NEURON_CACHE_NODE_DIR", str(tmp_path / "taker"))
    made = CliRunner().invoke(app, ["bundle", "export", str(record), str(file), "--url", str(shared)])
    assert made.exit_code == 0, made.output
    return file, tmp_path / "taker"


def test_a_bundle_is_judged_offline_and_imported_only_as_a_whole(bundle: tuple[Path, Path], tmp_path: Path):
    file, node = bundle
    trusted = write_list(tmp_path / "trusted", line(STRANGER, "stranger"))
    sound = CliRunner().invoke(app, ["bundle", "verify", str(file)])
    assert sound.exit_code == 0, sound.output
    judged = CliRunner().invoke(app, ["bundle", "verify", str(file), "--trusted-keys", str(trusted)])
    assert judged.exit_code == 1
    assert "signed by stranger" in judged.stdout
    assert "it is not signed" in judged.stdout
    imported = CliRunner().invoke(app, ["bundle", "import", str(file), "--trusted-keys", str(trusted)])
    assert imported.exit_code == 1
    assert "nothing was stored" in imported.output
    assert not list(node.rglob("model.neff")) if node.exists() else True
    tell("bundle with one unsigned entry, --trusted-keys", "(offline)", "refused, nothing was stored")
