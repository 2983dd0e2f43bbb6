"""An issuer of identity tokens: real keys, a real server for them on this machine, and every way to sign wrongly."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

AUDIENCE = "neff-cache"


def rsa_key(bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, bits)


def public_pem(key: Any) -> bytes:
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return bytes(key.public_key().public_bytes(encoding, form))


def jwk(key: Any, kid: str | None = None, **more: Any) -> dict[str, Any]:
    """Return the public key as a JWK."""
    kinds: list[tuple[type, Callable[..., Any]]] = [
        (rsa.RSAPrivateKey, RSAAlgorithm.to_jwk),
        (ec.EllipticCurvePrivateKey, ECAlgorithm.to_jwk),
        (ed25519.Ed25519PrivateKey, OKPAlgorithm.to_jwk),
    ]
    to_jwk = next(function for kind, function in kinds if isinstance(key, kind))
    return {**to_jwk(key.public_key(), as_dict=True), **({} if kid is None else {"kid": kid}), **more}


def segment(value: Any) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def signed_hs256(header: dict[str, Any], claims: dict[str, Any], secret: bytes) -> str:
    """Sign with a shared secret that no library would let pass for one."""
    head = f"{segment(header)}.{segment(claims)}"
    return f"{head}.{segment(hmac.new(secret, head.encode(), hashlib.sha256).digest())}"


@dataclass
class Issuer:
    """Publishes ``jwks`` under its own address; ``documents`` stand in for what it would answer to a path."""

    keys: dict[str, Any] = field(default_factory=dict)
    documents: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    is_down: bool = False
    seconds: float = 0.0

    def __enter__(self) -> Self:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked.append(self.path)
                issuer.headers.append({name.lower(): value for name, value in self.headers.items()})
                time.sleep(issuer.seconds)
                status, body = issuer.answer(self.path)
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", body.decode())
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/realm"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(HANG_SECONDS)

    def answer(self, path: str) -> tuple[int, bytes]:
        if self.is_down:
            return 503, b"down"
        if path in self.documents:
            return self.documents[path]
        if path == "/realm/.well-known/openid-configuration":
            return 200, json.dumps({"issuer": self.url, "jwks_uri": f"{self.url}/keys"}).encode()
        if path == "/realm/keys":
            return 200, json.dumps({"keys": [jwk(key, kid) for kid, key in self.keys.items()]}).encode()
        return 404, b""

    def claims(self, **more: Any) -> dict[str, Any]:
        """Return claims of a token for us; a value of None leaves that claim out."""
        now = int(time.time())
        found = {"iss": self.url, "aud": AUDIENCE, "sub": "job", "iat": now, "exp": now + 600, **more}
        return {name: value for name, value in found.items() if value is not None}

    def token(
        self,
        *,
        kid: str = "rsa",
        alg: str = "RS256",
        header: dict[str, Any] | None = None,
        key: Any = None,
        **more: Any,
    ) -> str:
        """Return a token; ``more`` are its claims, ``header`` is put over its header."""
        return jwt.encode(self.claims(**more), key or self.keys[kid], alg, {"kid": kid, **(header or {})})
