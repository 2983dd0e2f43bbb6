"""Identity tokens: who gets in, with which rights, and who never does. The issuer is real, on this machine."""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from cache_server.access import Scope
from cache_server.identity_file import IdentityFile, read_identity_file
from cache_server.services.claims import grants
from cache_server.services.identity import MAX_TOKEN, Identities
from cache_server.services.jwks import ASK_AGAIN_SECONDS
from cache_server.workers import Workers
from client.errors import ConfigurationError
from tests.cache_server.harness import build, sha256
from tests.support.issuer import AUDIENCE, Issuer, jwk, public_pem, rsa_key, segment, signed_hs256

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from cache_server.access import Principal
    from tests.cache_server.harness import InProcess

pytestmark = pytest.mark.once

RULES = """
[[issuer]]
name = "ci"
issuer = "{url}"
audience = "neff-cache"
algorithms = ["RS256", "ES256", "EdDSA"]

  [[issuer.rule]]  # a build of the main branch
  when = {{ repository_owner = "*", ref = "refs/heads/main" }}
  scopes = ["read", "write", "lease"]
  project = "{{repository_owner}}"

  [[issuer.rule]]  # any other build
  when = {{ repository_owner = "*", ref = "refs/*" }}
  scopes = ["read"]
  project = "{{repository_owner}}"

  [[issuer.rule]]  # a pod
  when."kubernetes.io.namespace" = "ml"
  when."kubernetes.io.serviceaccount.name" = ["trainer", "evaluator"]
  scopes = ["read", "write", "lease"]
  project = "ml-*"
  kind = ["graph", "eager"]

  [[issuer.rule]]
  when = {{ groups = "cache-admins", email_verified = true }}
  scopes = ["admin"]
"""
MAIN = {"repository_owner": "acme", "ref": "refs/heads/main"}
BRANCH = {"repository_owner": "acme", "ref": "refs/heads/fix"}
POD = {"kubernetes.io": {"namespace": "ml", "serviceaccount": {"name": "trainer"}}}
KEY = build().entry.key
HOLDER = {"holder": {"host": "h", "pid": 1}}


class Call(NamedTuple):
    title: str
    method: str
    path: str
    body: Any = None


CALLS = (
    Call("read acme", "GET", "/v1/acme/revoked"),
    Call("write acme", "PUT", f"/v1/acme/graph/entries/{KEY}/blobs/{sha256(b'x')}", "x"),
    Call("lease acme", "POST", f"/v1/acme/graph/leases/{KEY}", HOLDER),
    Call("delete acme", "DELETE", f"/v1/acme/graph/entries/{KEY}"),
    Call("read ml-a", "GET", "/v1/ml-a/revoked"),
    Call("write ml-a cc", "PUT", f"/v1/ml-a/cc/entries/{KEY}/blobs/{sha256(b'x')}", "x"),
    Call("read other", "GET", "/v1/other/revoked"),
    Call("read unknown", "GET", "/v1/unknown/revoked"),
    Call("metrics", "GET", "/metrics"),
)
NOBODY = (401,) * len(CALLS)
NOTHING = (404, 404, 404, 404, 404, 404, 404, 404, 403)


@pytest.fixture(scope="module")
def keys() -> dict[str, Any]:
    return {"rsa": rsa_key(), "ec": ec.generate_private_key(ec.SECP256R1()), "ed": ed25519.Ed25519PrivateKey.generate()}


@pytest.fixture
def issuer(keys: dict[str, Any]) -> Iterator[Issuer]:
    with Issuer(dict(keys)) as issuer:
        yield issuer


@pytest.fixture
def identity_file(tmp_path: Path, issuer: Issuer) -> Path:
    path = tmp_path / "identity.toml"
    path.write_text(RULES.format(url=issuer.url))
    return path


@pytest.fixture
def server(make_server: Callable[..., InProcess], identity_file: Path) -> InProcess:
    return make_server(identity_file=identity_file)


def _statuses(server: InProcess, token: str) -> tuple[int, ...]:
    found = []
    for call in CALLS:
        options = {"content": call.body} if isinstance(call.body, str) else {"json": call.body} if call.body else {}
        found.append(server.call(call.method, call.path, token=token, **options).status_code)
    return tuple(found)


def _show(title: str, rows: dict[str, tuple[int, ...]]) -> None:
    width = max(map(len, rows))
    print(f"\n{title:{width}}  " + "  ".join(call.title for call in CALLS))  # noqa: T201 - the table, with -s
    for name, statuses in rows.items():
        cells = (f"{status:<{len(call.title)}}" for status, call in zip(statuses, CALLS, strict=True))
        print(f"{name:{width}}  " + "  ".join(cells))  # noqa: T201


def test_claims_open_what_the_rules_say_and_nothing_else(server: InProcess, issuer: Issuer) -> None:
    reader = (200, 403, 200, 403, 404, 404, 404, 404, 403)
    writer = (200, (200, 201), 200, 403, 404, 404, 404, 404, 403)
    admin = (200, (200, 201), 200, 404, 200, (200, 201), 200, 200, 200)
    expected: dict[str, tuple[str, tuple[Any, ...]]] = {
        "main branch, RSA": (issuer.token(**MAIN), writer),
        "main branch, EC": (issuer.token(kid="ec", alg="ES256", **MAIN), writer),
        "main branch, Ed25519": (issuer.token(kid="ed", alg="EdDSA", **MAIN), writer),
        "another branch": (issuer.token(**BRANCH), reader),
        "audience in a list": (issuer.token(aud=["x", AUDIENCE], **BRANCH), reader),
        "access token": (issuer.token(header={"typ": "at+jwt"}, **BRANCH), reader),
        "pod of the namespace": (issuer.token(**POD), (404, 404, 404, 404, 200, 403, 404, 404, 403)),
        "group of admins": (issuer.token(groups=["x", "cache-admins"], email_verified=True), admin),
        "unverified admin": (issuer.token(groups=["cache-admins"], email_verified=1), NOTHING),
        "no rule": (issuer.token(), NOTHING),
        "owner is no project": (issuer.token(repository_owner="A*", ref="refs/heads/main"), NOTHING),
        "owner is reserved": (issuer.token(repository_owner="meta", ref="refs/heads/main"), NOTHING),
        "other service account": (
            issuer.token(**{"kubernetes.io": {"namespace": "ml", "serviceaccount": {"name": "x"}}}),
            NOTHING,
        ),
    }
    found = {name: _statuses(server, token) for name, (token, _) in expected.items()}
    _show("claims", found)
    for name, (_, statuses) in expected.items():
        for call, status, wanted in zip(CALLS, found[name], statuses, strict=True):
            assert status in (wanted if isinstance(wanted, tuple) else (wanted,)), (name, call.title)


def _refused(issuer: Issuer, keys: dict[str, Any]) -> dict[str, str]:
    """Return tokens with every claim that the rules ask for, none of which may be taken."""
    stranger, small = rsa_key(), rsa_key(1024)
    issuer.keys["small"] = small
    good = issuer.token(**MAIN)
    head, body, signature = good.split(".")
    pem = public_pem(keys["rsa"])
    claims = issuer.claims(**MAIN)
    now = claims["iat"]
    own = {"kid": "rsa", "jwk": jwk(stranger, "rsa")}
    return {
        "alg none": f"{segment({'alg': 'none', 'typ': 'JWT'})}.{body}.",
        "alg None, kid kept": f"{segment({'alg': 'None', 'kid': 'rsa'})}.{body}.",
        "signature left out": f"{head}.{body}.",
        "HS256 with the RSA key's PEM": signed_hs256({"alg": "HS256", "typ": "JWT", "kid": "rsa"}, claims, pem),
        "HS256, said to be RS256": signed_hs256({"alg": "RS256", "typ": "JWT", "kid": "rsa"}, claims, pem),
        "PS256, not on the list": issuer.token(alg="PS256", **MAIN),
        "ES256 naming the RSA key": issuer.token(key=keys["ec"], alg="ES256", **MAIN),
        "signed by a stranger": issuer.token(key=stranger, **MAIN),
        "claims changed afterwards": f"{head}.{segment({**claims, 'ref': 'refs/heads/other'})}.{signature}",
        "key in the header (jwk)": issuer.token(key=stranger, header=own, **MAIN),
        "key elsewhere (jku)": issuer.token(key=stranger, header={"jku": f"{issuer.url}/stranger"}, **MAIN),
        "certificate elsewhere (x5u)": issuer.token(key=stranger, header={"x5u": f"{issuer.url}/stranger"}, **MAIN),
        "RSA key of 1024 bits": issuer.token(kid="small", **MAIN),
        "unknown kid": issuer.token(key=keys["rsa"], kid="none", **MAIN),
        "kid is a path": issuer.token(key=keys["rsa"], kid="../../../../etc/passwd", **MAIN),
        "kid is SQL": issuer.token(key=keys["rsa"], kid="x' OR '1'='1", **MAIN),
        "kid is an address": issuer.token(key=keys["rsa"], kid=f"{issuer.url}/stranger", **MAIN),
        "kid is long": issuer.token(key=keys["rsa"], kid="k" * 3000, **MAIN),
        "another audience": issuer.token(aud="other", **MAIN),
        "no audience": issuer.token(aud=None, **MAIN),
        "audience begins so": issuer.token(aud=AUDIENCE + "-x", **MAIN),
        "another issuer": issuer.token(iss="https://issuer.example", **MAIN),
        "issuer with a slash more": issuer.token(iss=issuer.url + "/", **MAIN),
        "no issuer": issuer.token(iss=None, **MAIN),
        "expired": issuer.token(iat=now - 700, exp=now - 60, **MAIN),
        "never expires": issuer.token(exp=None, **MAIN),
        "expires as text": issuer.token(exp=str(now + 600), **MAIN),
        "expires at infinity": issuer.token(exp=float("inf"), **MAIN),
        "not valid yet (nbf)": issuer.token(nbf=now + 300, **MAIN),
        "issued in the future": issuer.token(iat=now + 300, **MAIN),
        "issued at no time": issuer.token(iat=None, **MAIN),
        "for nobody (no sub)": issuer.token(sub=None, **MAIN),
        "a logout token": issuer.token(header={"typ": "logout+jwt"}, **MAIN),
        "critical extension": issuer.token(header={"crit": ["exp"], "exp": now}, **MAIN),
        "unencoded payload (b64)": issuer.token(header={"crit": ["b64"], "b64": False}, **MAIN),
        "claims are a list": f"{head}.{segment([1])}.{signature}",
        "claims nested deeply": f"{head}.{segment(b'[' * 9000)}.{signature}",
        "four parts": good + ".x",
        "too long": issuer.token(padding="x" * MAX_TOKEN, **MAIN),
    }


@pytest.mark.filterwarnings("ignore:The RSA key is")  # said to whoever signs
def test_no_forged_or_misused_token_opens_anything(server: InProcess, issuer: Issuer, keys: dict[str, Any]) -> None:
    tokens = _refused(issuer, keys)
    assert _statuses(server, issuer.token(**MAIN))[0] == 200  # the same claims, rightly signed
    found = {name: _statuses(server, token) for name, token in tokens.items()}
    _show("token", found)
    for name, statuses in found.items():
        assert statuses == NOBODY, name
    assert not [path for path in issuer.asked if "stranger" in path]
    # none of the invented key names made the server ask again
    assert issuer.asked.count("/realm/keys") == 1


def test_a_refused_token_is_explained_in_the_log_and_never_shown(server: InProcess, issuer: Issuer) -> None:
    token = issuer.token(aud="other", **MAIN)
    with structlog.testing.capture_logs() as logs:
        assert server.call("GET", "/v1/acme/revoked", token=token).status_code == 401
    (line,) = [line for line in logs if line["event"] == "identity token refused"]
    assert (line["issuer"], "audience" in line["reason"]) == ("ci", True)
    assert token.split(".")[2] not in str(logs)


def test_stored_tokens_still_count_beside_an_issuer_that_is_down(server: InProcess, issuer: Issuer) -> None:
    issuer.is_down = True
    assert server.call("GET", "/v1/acme/revoked").status_code == 200
    assert server.call("GET", "/v1/acme/revoked", token=issuer.token(**MAIN)).status_code == 401


def test_anonymous_rights_are_no_way_round_a_refused_token(
    make_server: Callable[..., InProcess], identity_file: Path, issuer: Issuer
) -> None:
    server = make_server(identity_file=identity_file, anonymous="read")
    assert server.call("GET", "/v1/acme/revoked", token=None).status_code == 200
    assert server.call("GET", "/v1/acme/revoked", token=issuer.token(aud="other")).status_code == 401


# Keys that change, and issuers that fail


@dataclass
class Watched:
    """Identities on clocks that the test moves: ``now`` is the monotonic one, ``wall`` the other if it stands still."""

    path: Path
    now: float = 0.0
    wall: float | None = None
    logs: list[Any] = field(default_factory=list)

    def run(self, work: Callable[[Identities], Awaitable[Any]]) -> Any:
        async def inside() -> Any:
            workers = Workers(4)
            try:
                identities = Identities(
                    read_identity_file(self.path),
                    workers,
                    now=lambda: time.time() if self.wall is None else self.wall,
                    monotonic=lambda: self.now,
                )
                return await work(identities)
            finally:
                workers.close()

        with structlog.testing.capture_logs() as self.logs:
            return asyncio.run(inside())


def _write(path: Path, issuer: Issuer, *lines: str, above: str = "") -> Watched:
    rule = 'rule = [{ when = { sub = "*" }, scopes = ["read"] }]'
    path.write_text(
        "\n".join(
            [above, "[[issuer]]", 'name = "ci"', f'issuer = "{issuer.url}"', 'audience = "neff-cache"', *lines, rule]
        )
    )
    return Watched(path)


def test_a_new_key_is_taken_within_a_minute_and_the_old_one_stays_until_it_is_withdrawn(
    tmp_path: Path, issuer: Issuer
) -> None:
    watched = _write(tmp_path / "identity.toml", issuer)

    async def rotate(identities: Identities) -> list[bool]:
        async def opens(token: str) -> bool:
            return await identities.principal(token) is not None

        found = [await opens(issuer.token())]
        issuer.keys["next"] = rsa_key()
        found += [await opens(issuer.token(kid="next")), await opens(issuer.token(kid="next"))]
        assert issuer.asked.count("/realm/keys") == 1
        watched.now += ASK_AGAIN_SECONDS
        found += [await opens(issuer.token(kid="next")), await opens(issuer.token())]
        assert issuer.asked.count("/realm/keys") == 2
        old = issuer.token()
        del issuer.keys["rsa"]
        watched.now += 3601  # older than its life: still used while the new ones are fetched
        found.append(await opens(issuer.token(kid="next")))
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            while issuer.asked.count("/realm/keys") < 3 or await opens(old):  # noqa: ASYNC110 - the issuer has no event
                await asyncio.sleep(0.01)
        found.append(await opens(old))
        return found

    assert watched.run(rotate) == [True, False, False, True, True, True, False]


def test_an_issuer_that_is_down_is_survived_for_a_time_that_is_bounded(tmp_path: Path, issuer: Issuer) -> None:
    watched = _write(tmp_path / "identity.toml", issuer, above="jwks_seconds = 100\nkeep_seconds = 1000")

    async def fail(identities: Identities) -> list[bool]:
        found = [await identities.principal(issuer.token()) is not None]
        issuer.is_down = True
        for age in (99, 101, 1099, 1101):
            watched.now = age
            found.append(await identities.principal(issuer.token()) is not None)
        issuer.is_down = False
        watched.now += ASK_AGAIN_SECONDS
        found.append(await identities.principal(issuer.token()) is not None)
        return found

    assert watched.run(fail) == [True, True, True, True, False, True]
    reasons = [line["reason"] for line in watched.logs if line["event"] == "keys not fetched"]
    assert reasons
    assert all("503" in reason for reason in reasons)


def test_many_callers_at_once_cost_an_issuer_one_fetch(tmp_path: Path, issuer: Issuer) -> None:
    watched = _write(tmp_path / "identity.toml", issuer)
    issuer.seconds = 0.1

    async def crowd(identities: Identities) -> list[Principal | None]:
        tokens = [issuer.token(sub=f"job-{number}") for number in range(50)]
        return await asyncio.gather(*map(identities.principal, tokens))

    found = watched.run(crowd)
    assert [one.name for one in found] == [f"ci:job-{number}" for number in range(50)]
    assert len(issuer.asked) == 2  # where the keys are, and the keys


def test_a_verified_token_is_not_verified_again_and_ends_all_the_same(tmp_path: Path, issuer: Issuer) -> None:
    watched = _write(tmp_path / "identity.toml", issuer, above="leeway_seconds = 0")
    watched.wall = 1000

    async def use(identities: Identities) -> list[bool]:
        long = issuer.token(iat=1000, exp=2000)
        short = issuer.token(iat=1000, exp=1020)
        for token in (long, short):
            assert await identities.principal(token) is not None
        found = []
        for watched.now in (19.0, 21.0, 61.0):
            found += [identities.remembered(long) is not None, identities.remembered(short) is not None]
        watched.wall = 1000 + watched.now
        found += [await identities.principal(long) is not None, await identities.principal(short) is not None]
        return found

    assert watched.run(use) == [True, True, True, False, False, False, True, False]


@pytest.mark.parametrize(
    ("documents", "reason"),
    [
        (
            {"/realm/.well-known/openid-configuration": (200, b'{"issuer": "https://x", "jwks_uri": "x"}')},
            "very issuer",
        ),
        ({"/realm/.well-known/openid-configuration": (302, b"/realm/elsewhere")}, "302"),
        ({"/realm/.well-known/openid-configuration": (200, b"<html>")}, ""),
        ({"/realm/keys": (200, b"[]")}, "no JWK set"),
        ({"/realm/keys": (200, b'{"keys": []}')}, "no key that can be used"),
        (
            {"/realm/keys": (200, b'{"keys": [1, {"kty": "oct", "k": "AAAA", "kid": "rsa"}]}')},
            "no key that can be used",
        ),
        ({"/realm/keys": (200, b" " * (600 << 10))}, "more than"),
        ({"/realm/keys": (200, b"[" * 100_000)}, "nested"),
        ({"/realm/keys": (500, b"")}, "500"),
    ],
)
def test_what_an_issuer_should_not_say_lets_nobody_in_and_breaks_nothing(
    tmp_path: Path, issuer: Issuer, documents: dict[str, tuple[int, bytes]], reason: str
) -> None:
    issuer.documents = documents
    watched = _write(tmp_path / "identity.toml", issuer)
    assert watched.run(lambda identities: identities.principal(issuer.token())) is None
    (line,) = [line for line in watched.logs if line["event"] == "keys not fetched"]
    assert reason in line["reason"]


def test_a_private_or_contradictory_key_in_the_set_is_left_out(tmp_path: Path, issuer: Issuer) -> None:
    members = [
        {**jwk(issuer.keys["rsa"], "rsa"), "d": "AQAB"},
        jwk(issuer.keys["rsa"], "enc", use="enc"),
        jwk(issuer.keys["rsa"], "es", alg="ES256"),
        jwk(issuer.keys["rsa"], "ps", alg="PS256"),
        jwk(issuer.keys["ec"], "ec"),
    ]
    issuer.documents["/realm/keys"] = (200, json.dumps({"keys": members}).encode())
    watched = _write(tmp_path / "identity.toml", issuer)

    async def ask(identities: Identities) -> list[bool]:
        tokens = [issuer.token(key=issuer.keys["rsa"], kid=kid) for kid in ("rsa", "enc", "es", "ps")]
        tokens.append(issuer.token(kid="ec", alg="ES256"))
        return [await identities.principal(token) is not None for token in tokens]

    assert watched.run(ask) == [False, False, False, False, True]


def test_keys_may_lie_in_a_file_or_be_asked_for_with_a_token_of_our_own(tmp_path: Path, issuer: Issuer) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(issuer.answer("/realm/keys")[1])
    watched = _write(tmp_path / "identity.toml", issuer, f'jwks_file = "{file}"')
    assert watched.run(lambda identities: identities.principal(issuer.token())) is not None
    assert not issuer.asked

    (tmp_path / "bearer").write_text("pod-token\n")
    lines = (f'jwks_url = "{issuer.url}/keys"', f'bearer_file = "{tmp_path / "bearer"}"')
    watched = _write(tmp_path / "identity.toml", issuer, *lines)
    assert watched.run(lambda identities: identities.principal(issuer.token())) is not None
    assert issuer.asked == ["/realm/keys"]
    assert issuer.headers[0]["authorization"] == "Bearer pod-token"


def test_a_name_in_the_log_is_one_line(tmp_path: Path, issuer: Issuer) -> None:
    watched = _write(tmp_path / "identity.toml", issuer)
    found = watched.run(lambda identities: identities.principal(issuer.token(sub="a\nb\u2028c" + "x" * 500)))
    assert found.name.startswith("ci:a?b?cx")
    assert len(found.name) <= 200
    assert found.grants[0].scopes == {Scope.READ}


# The file


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[[issuer", "no TOML"),
        ("x = 1", "x: Extra inputs"),
        ('[[issuer]]\nname = "a"\nissuer = "http://issuer.example"\naudience = "b"\nRULES', "not encrypted"),
        ('[[issuer]]\nname = "a"\nissuer = "https://u:p@x"\naudience = "b"\nRULES', "with a user"),
        ('[[issuer]]\nname = "A b"\nissuer = "https://x"\naudience = "b"\nRULES', "issuer.0.name"),
        ('[[issuer]]\nname = "certificate"\nissuer = "https://x"\naudience = "b"\nRULES', "another name"),
        ('[[issuer]]\nname = "a"\nissuer = "https://x"\nRULES', "audience: Field required"),
        (
            '[[issuer]]\nname = "a"\nissuer = "https://x"\naudience = "b"\nalgorithms = ["HS256"]\nRULES',
            "algorithms",
        ),
        (
            '[[issuer]]\nname = "a"\nissuer = "https://x"\naudience = "b"\nalgorithms = ["none"]\nRULES',
            "algorithms",
        ),
        ('[[issuer]]\nname = "a"\nissuer = "https://x"\naudience = "b"\nrule = []', "rule"),
        ("RULE when = {}\nscopes = ['read']", "when"),
        ("RULE when = { sub = 1.5 }\nscopes = ['read']", "condition on sub"),
        ("RULE when = { sub = 'x' }\nscopes = ['root']", "scopes"),
        ("RULE when = { sub = 'x' }\nscopes = []", "scopes"),
        ("RULE when = { sub = 'x' }\nscopes = ['read']\nkind = 'grahp'", "no kind"),
        ("RULE when = { sub = 'x' }\nscopes = ['read']\nproject = '{a}-*'", "project's name"),
        ("RULE when = { sub = 'x' }\nscopes = ['read']\nproject = '{a}-{b}'", "two placeholders"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_at_start(tmp_path: Path, text: str, sentence: str) -> None:
    head = '[[issuer]]\nname = "a"\nissuer = "https://x"\naudience = "b"\n[[issuer.rule]]\n'
    path = tmp_path / "identity.toml"
    rules = 'rule = [{ when = { sub = "*" }, scopes = ["read"] }]'
    path.write_text(text.replace("RULES", rules).replace("RULE ", head))
    with pytest.raises(ConfigurationError, match=str(path)) as caught:
        read_identity_file(path)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="identity-file"):
        read_identity_file(tmp_path / "absent.toml")


def test_the_examples_of_the_document_mean_what_it_says(tmp_path: Path) -> None:
    document = Path(__file__).parents[3] / "docs" / "identity.md"
    files = []
    for number, example in enumerate(re.findall(r"```toml\n(.*?)```", document.read_text(), re.DOTALL)):
        path = tmp_path / f"{number}.toml"
        path.write_text(example)
        files.append(read_identity_file(path))
    github, kubernetes, certificates = files
    build_of = {"repository_owner": "acme", "ref": "refs/heads/main"}
    scopes = [
        {scope for grant in grants(github.issuer[0].rules(), {**build_of, **more}) for scope in grant.scopes}
        for more in ({"event_name": "push"}, {"event_name": "pull_request_target"}, {"repository_owner": "evil"})
    ]
    assert scopes == [{Scope.READ, Scope.WRITE, Scope.LEASE}, {Scope.READ}, set()]
    pod = {"kubernetes.io": {"namespace": "team-a", "serviceaccount": {"name": "trainer"}}, "sub": "x"}
    assert [grant.project_pattern for grant in grants(kubernetes.issuer[0].rules(), pod)] == ["team-a"]
    assert certificates.certificate is not None


def test_names_with_dots_need_no_quotes(tmp_path: Path) -> None:
    path = tmp_path / "identity.toml"
    path.write_text(
        '[[issuer]]\nname = "k8s"\nissuer = "https://x"\naudience = "b"\n[[issuer.rule]]\n'
        'when.kubernetes.io.namespace = "ml"\nscopes = ["read"]\nproject = "{kubernetes.io.namespace}"\n'
    )
    (rule,) = read_identity_file(path).issuer[0].rules()
    (grant,) = rule.grants({"kubernetes.io": {"namespace": "ml"}})
    assert grant.project_pattern == "ml"
    assert rule.grants({"kubernetes.io": {"namespace": "web"}}) == ()
    assert isinstance(read_identity_file(path), IdentityFile)
