"""What an operator can set: by keyword, or by environment variables that begin with ``NEFF_CACHE_``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from cache_server.hosts import LOOPBACK, own_namespace, with_service_names
from cache_server.metric_projects import MOST_PROJECTS
from cache_server.weak_tokens import check_secret
from client.encoding import MAX_SIZE
from client.environment import is_made_up
from client.errors import ConfigurationError
from client.folders import base_folder
from client.shown import shown_address
from client.token import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.fields import FieldInfo

PREFIX = "NEFF_CACHE_"

Anonymous: TypeAlias = Literal["none", "read", "all"]
ClientMode: TypeAlias = Literal["off", "optional", "required"]
Role: TypeAlias = Literal["all", "api", "collector"]

_WILDCARDS = frozenset({"", "0.0.0.0", "::", "[::]"})  # noqa: S104 - recognised in order to be refused
_MIB = 1 << 20


def default_data_dir() -> Path:
    """Return ``$XDG_DATA_HOME/neff-cache``, by default ``~/.local/share/neff-cache``.

    Raises `ConfigurationError` where neither the variable nor a home directory is known.
    """
    base = base_folder(os.environ, "XDG_DATA_HOME")
    if base is None:
        raise ConfigurationError("no home directory is known for the data: give --data-dir, or set XDG_DATA_HOME")
    return Path(base) / "neff-cache"


def variables(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return by setting what the environment says: the variable's name and its text.

    An empty variable is one that is not set: so compose files and charts write a value that nobody gave. Nor does one
    count that a platform made up from the name of a service; see `client.environment.is_made_up`.
    """
    found = {}
    for variable, text in environ.items():
        setting = variable.upper().removeprefix(PREFIX).lower()
        ours = variable.upper().startswith(PREFIX) and setting in Settings.model_fields
        if ours and text.strip() and not is_made_up(variable, environ):
            found[setting] = variable, text.strip()
    return found


class _Environment(PydanticBaseSettingsSource):
    """The environment of this process, read by `variables`."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002 - the base's
        """Return the variable's text, if it is set."""
        found = variables(os.environ).get(field_name)
        return (None if found is None else found[1]), field_name, False

    def __call__(self) -> dict[str, Any]:
        """Return the texts of all that are set."""
        return {name: text for name, (_, text) in variables(os.environ).items()}


class Settings(BaseSettings):
    """All settings of a server, with their defaults. Durations are in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic's signature; ours takes its place
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take what is given by keyword, then the environment: there are no other sources."""
        return init_settings, _Environment(settings_cls)

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    role: Role = Field(
        "all",
        description="`api`: answer requests and leave the periodic work (collection, sweep, scrub) to others; "
        "`collector`: that work, health and metrics only; `all`: both. Other than `all` needs PostgreSQL and a bucket.",
    )
    data_dir: Path = Field(default_factory=default_data_dir, description="Folder that holds store and database.")
    # what may hold a password or a key is not shown with the settings
    store: str | None = Field(
        None, repr=False, description="Where outputs lie; by default the folder `store` of the data folder."
    )
    database: str | None = Field(None, repr=False, description="SQLAlchemy URL; by default SQLite in the data folder.")
    database_file: Path | None = Field(
        None, description="File that holds that URL, as a mounted secret does; in place of `database`."
    )
    migrate: bool = Field(
        True,  # noqa: FBT003 - the default of a field
        description="Bring the database to this version's schema at the start; "
        "if not, `neff-cache admin migrate` has to do it.",
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Host names this server answers to, comma-separated, besides this machine's own; `*` for any. For "
        "a Service's short name its `NAME.NAMESPACE.svc` and `NAME.NAMESPACE.svc.cluster.local` count as well.",
    )
    anonymous: Anonymous = Field("none", description="What callers without a token may do.")
    bootstrap_token: SecretStr | None = Field(None, description="A token that is registered as admin at each start.")
    bootstrap_token_file: Path | None = Field(
        None, description="File that holds that token, as a mounted secret does; in place of `bootstrap_token`."
    )
    identity_file: Path | None = Field(
        None, description="TOML file of the issuers whose identity tokens are taken, and of what their callers may do."
    )

    tls_cert: Path | None = Field(
        None, description="PEM file with the server's certificate and its chain: turns TLS on; read again on a change."
    )
    tls_key: Path | None = Field(None, description="PEM file with its key; by default it is in the certificate's file.")
    tls_client_ca: Path | None = Field(
        None, description="PEM file with the authorities of client certificates; read again on a change."
    )
    tls_client_mode: ClientMode = Field(
        "off", description="Client certificates: not asked for, `optional` (verified if shown), or `required`."
    )
    tls_reload_seconds: float = Field(10.0, gt=0, description="How often the certificates' files are looked at.")

    lease_ttl_seconds: float = Field(
        30.0, gt=0, le=3600, description="A lease ends this long after its last heartbeat."
    )
    max_leases: int = Field(
        4096,
        ge=1,
        description="Leases that one token may hold at once; whoever asks for more is told to come later. A token that "
        "a whole cluster shares holds one for each compiler that runs.",
    )
    key_lock_seconds: float = Field(30.0, gt=0, description="How long a request waits for another one's work on a key.")
    head_seconds: float = Field(30.0, gt=0, description="A request's head must have arrived whole by then.")
    upload_idle_seconds: float = Field(30.0, gt=0, description="An upload that stands still this long is given up.")
    drain_seconds: float = Field(
        0.0,
        ge=0,
        description="How long after SIGTERM requests are still taken, while `/readyz` answers 503: "
        "the time a load balancer needs to notice.",
    )
    shutdown_seconds: float = Field(
        30.0, ge=0, description="How long requests that run may then go on, before they are cut off."
    )
    poll_seconds: float = Field(
        5.0,
        gt=0,
        description="With several servers: how often waited-for keys are looked at, in case a wake-up is lost.",
    )
    sweep_seconds: float = Field(3600.0, gt=0, description="How often left-overs are looked for.")
    orphan_seconds: float = Field(86400.0, gt=0, description="Age at which an output that no entry names is removed.")
    quarantine_seconds: float = Field(7 * 86400.0, gt=0, description="How long damaged entries are kept for a look.")

    redirect_bytes: int | None = Field(
        None, ge=0, description="With S3: reads of outputs this large are redirected there; by default none is."
    )
    redirect_seconds: int = Field(300, ge=1, le=43200, description="How long the address of a redirect is good for.")

    usage_seconds: float = Field(1.0, gt=0, description="How often uses of entries are written to the database.")
    collect_seconds: float = Field(300.0, gt=0, description="How often entries are collected where a rule asks for it.")
    collect_grace_seconds: float = Field(
        600.0, ge=0, description="An entry published or used within this time is never collected."
    )

    reserve_bytes: int = Field(256 * _MIB, ge=0, description="Room on the store's disk that uploads leave free.")
    scrub_bytes_per_second: int = Field(
        16 * _MIB, ge=0, description="How fast stored outputs are read again to verify them; 0: only on request."
    )
    scrub_seconds: float = Field(
        30 * 86400.0, gt=0, description="An output is read again this long after it was last found right."
    )

    max_output_bytes: int = Field(MAX_SIZE, gt=0, description="Largest output, plain bytes.")
    max_entry_bytes: int = Field(_MIB, gt=0, description="Largest JSON body of one entry, lease or report.")
    max_batch_bytes: int = Field(8 * _MIB, gt=0, description="Largest JSON body of a look-up or plan.")
    threads: int = Field(16, ge=2, le=256, description="Worker threads for disk, hashing and database.")
    rate_limit: float | None = Field(
        None, gt=0, description="Requests a second that each token may send to this server; by default any number."
    )
    rate_burst_seconds: float = Field(
        10.0, ge=0, description="A token that was silent for so long may send as much at once."
    )
    audit_days: float = Field(365.0, gt=0, description="How long the audit trail is kept.")
    access_log: bool = Field(True, description="Log every request, not only failed ones.")  # noqa: FBT003
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="What is logged at least; requests are at `info`, failed ones at `warning`."
    )
    metrics_projects: int = Field(
        MOST_PROJECTS, ge=0, description="Most projects with a label of their own in metrics; the others share one."
    )
    otlp_endpoint: str | None = Field(
        None,
        repr=False,
        description="Address of an OpenTelemetry collector (OTLP over HTTP) that traces are sent to; needs `[otel]`.",
    )
    log_format: Literal["auto", "json", "text"] = Field("auto", description="`auto`: text on a terminal, else JSON.")

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address we listen on."""
        return is_loopback(self.host.strip("[]"))

    def host_names(self) -> frozenset[str]:
        """Return the Host names to answer to (lower case, IPv6 in brackets), or ``{"*"}`` for any.

        Raises `ConfigurationError` if the settings would leave the server open to DNS rebinding.
        """
        named = with_service_names(self.allowed_hosts, namespace=own_namespace(), anonymous=self.anonymous != "none")
        if "*" in named:
            if self.anonymous != "none":
                raise ConfigurationError(
                    "--allowed-host '*' together with --anonymous would let any web page use this server: "
                    "name the hosts, or turn anonymous access off"
                )
            return frozenset({"*"})
        if named:
            return named | LOOPBACK
        if self.host in _WILDCARDS:
            raise ConfigurationError(
                f"--host {self.host!r} listens on every address, so the names to answer to must be given: "
                "add --allowed-host NAME (or NEFF_CACHE_ALLOWED_HOSTS) for each"
            )
        own = f"[{self.host}]" if ":" in self.host and not self.host.startswith("[") else self.host
        return LOOPBACK | {own.lower()}

    @property
    def bucket_url(self) -> str | None:
        """The ``s3://`` address of the store, or None for a local one."""
        return self.store if self.store is not None and self.store.startswith("s3://") else None

    def store_path(self) -> Path:
        """Return the folder of the local store; raises `ConfigurationError` for a store of another kind."""
        if self.store is None:
            return self.data_dir / "store"
        scheme, separator, rest = self.store.partition("://")
        if not separator:
            return Path(self.store).expanduser().absolute()
        if scheme == "file" and rest.startswith("/"):
            return Path(rest)
        raise ConfigurationError(
            f"--store {shown_address(self.store)} is not known here: expected a folder, file:///folder or s3://bucket/prefix"
        )

    def database_url(self) -> URL:
        """Return the SQLAlchemy URL of the database; raises `ConfigurationError` for what is none."""
        if self.database is not None and self.database_file is not None:
            raise ConfigurationError("database and database_file are both set: give one of them")
        given = self.database if self.database_file is None else _secret(self.database_file, "database_file")
        if given is None:
            return URL.create("sqlite", database=str(self.data_dir / "cache.db"))
        try:
            return make_url(given)
        except ArgumentError as error:
            # not shown: it may hold a password
            raise ConfigurationError(
                "--database is no SQLAlchemy URL; try sqlite:////path/to/cache.db or postgresql://user@host/name"
            ) from error

    def first_token(self) -> str | None:
        """Return the token to register at each start, or None.

        Raises `ConfigurationError` for a file that cannot be read, and for a token that somebody could guess.
        """
        if self.bootstrap_token is not None and self.bootstrap_token_file is not None:
            raise ConfigurationError("bootstrap_token and bootstrap_token_file are both set: give one of them")
        if self.bootstrap_token_file is not None:
            where = f"bootstrap_token_file {self.bootstrap_token_file}"
            return check_secret(_secret(self.bootstrap_token_file, "bootstrap_token_file"), where)
        return (
            None
            if self.bootstrap_token is None
            else check_secret(self.bootstrap_token.get_secret_value(), "bootstrap_token")
        )

    def check_role(self) -> None:
        """Raise `ConfigurationError` for a role that would leave work to a server that cannot be there."""
        if self.role != "all" and (self.bucket_url is None or self.database_url().get_backend_name() == "sqlite"):
            raise ConfigurationError(
                f"--role {self.role} shares the work with other servers, and only one server can use SQLite or a "
                "folder: give a PostgreSQL --database and an s3:// --store, or --role all"
            )


def _secret(path: Path, setting: str) -> str:
    try:
        value = path.expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise ConfigurationError(f"{setting} {path} cannot be read: {reason}") from error
    if not value:
        raise ConfigurationError(f"{setting} {path} is empty: expected the value on its first line")
    return value
