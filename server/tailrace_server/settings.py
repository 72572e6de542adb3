"""Settings of the server process, from a TOML file, the environment and flags; the later override the earlier.

Every setting is a field of a dataclass, with its unit and reason. The names of flags, variables and file keys,
their help, ``serve --print-config`` and docs/settings.md are made from these fields, so that no setting is
missing::

    field           file key          variable                  flag
    ring_captures   ring_captures     TAILRACE_RING_CAPTURES    --ring-captures
    memory_bytes    memory            TAILRACE_MEMORY           --memory

Bytes may have a unit (``512MiB``), and so may seconds (``500ms``, ``2m``). An unknown key or a value out of
bounds is refused; the error has the name and the source. An unknown variable is not refused, but ``serve`` logs
a warning if it looks like a misspelt setting.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import tomllib
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_origin, get_type_hints

from pydantic import BeforeValidator, Field, ValidationError, create_model
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from tailrace.errors.requests import nearest
from tailrace_server.access.settings import AccessSettings, AuditSettings, QuotaSettings
from tailrace_server.api.settings import (
    GrpcSettings,
    HttpSettings,
    Origins,
    TransportSecuritySettings,
    listed,
)
from tailrace_server.api.transport_security.proxies import TrustedProxies
from tailrace_server.errors import ConfigError
from tailrace_server.process import Scheduling  # noqa: TC001 - get_type_hints reads it
from tailrace_server.resources.settings import EngineSettings, setting
from tailrace_server.units import Address, format_bytes, format_seconds, parse_bytes, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX: Final = "TAILRACE_"
CONFIG_VARIABLE: Final = f"{PREFIX}CONFIG"
_OTHER_VARIABLES: Final = frozenset(
    {CONFIG_VARIABLE}
    | {
        f"{PREFIX}{each}"
        for each in ("SERVER", "TOKEN", "TLS_CA", "CLIENT_CERTIFICATE", "CLIENT_KEY", "TRACEBACK")
    }
)
"""Variables with the same prefix that other parts of the project read."""
Source = Literal["default", "file", "environment", "flag"]

_PLAIN_NAMES: Final = {
    "memory_bytes": "memory",
    "max_connection_age_s": "max_connection_age",
    "max_connection_age_grace_s": "max_connection_age_grace",
}
"""Names of settings that differ from the names of their fields."""
_DAY_S: Final = 86_400
_LONGER_S: Final = {"hold_max_s": 366 * _DAY_S}
"""Durations that may be longer than a day, with their maximum: they bound retention, not a wait."""
_PATHS: Final = ("folder", "file")
"""Units of settings that are paths, which have no default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings of a server process; groups, such as the engine's settings, are fields of their own."""

    log: Path | None = setting(None, "folder", "log root, with one folder per catalog; required")
    grpc: Address = setting(
        Address("127.0.0.1", 7411),
        "host:port",
        "address of the gRPC listener; loopback by default, since any client that connects can "
        "read everything; port 0 takes a free port",
    )
    http: Address | None = setting(
        Address("127.0.0.1", 7412),
        "host:port",
        "address of the listener for REST, WebSocket, event streams, /health and /metrics; `off` "
        "for no HTTP",
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info",
        "name",
        "least level of logged events; info logs each start, end and fault, but not each "
        "subscription",
    )
    log_statistics_s: float = setting(
        60.0,
        "seconds",
        "interval between log lines with the numbers of /metrics; none is logged while no number "
        "changes",
    )
    log_format: Literal["auto", "json", "console"] = setting(
        "auto",
        "name",
        "form of log lines; auto: console on a terminal, else one JSON object a line",
    )
    probe_interval_s: float = setting(
        5.0,
        "seconds",
        "interval at which the server connects to its own ports; it reopens a port that does not "
        "accept",
    )
    stop_deadline_s: float = setting(
        8.0,
        "seconds",
        "longest time from SIGTERM to the end of the process; most service managers kill it "
        "after 10 s",
    )
    scheduling: Scheduling = setting(
        "batch",
        "name",
        "batch: the server's threads do not preempt each other, which saves 1/8 of the time for "
        "each capture; normal: for a machine shared with work that the server must preempt",
    )
    engine: EngineSettings = dataclasses.field(default_factory=EngineSettings)
    grpc_face: GrpcSettings = dataclasses.field(default_factory=GrpcSettings)
    http_faces: HttpSettings = dataclasses.field(default_factory=HttpSettings)
    transport_security: TransportSecuritySettings = dataclasses.field(
        default_factory=TransportSecuritySettings
    )
    access: AccessSettings = dataclasses.field(default_factory=AccessSettings)
    auditing: AuditSettings = dataclasses.field(default_factory=AuditSettings)
    quotas: QuotaSettings = dataclasses.field(default_factory=QuotaSettings)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its names, unit, default and reason."""

    name: str
    """Key in the file; flag and variable are derived from it."""
    field: str
    """Name of the dataclass field."""
    unit: str
    default: Any
    reason: str

    @property
    def flag(self) -> str:
        """The flag of ``tailrace serve``."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"{PREFIX}{self.name.upper()}"

    def format(self, value: Any) -> str:
        """Return a value as text, in a form that is parsed to the same value."""
        if value is None:
            return "" if self.unit in _PATHS else "off"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if self.unit == "bytes":
            return format_bytes(value)
        return format_seconds(value) if self.unit == "seconds" else str(value)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings in effect, and the source of each."""

    settings: ServerSettings
    sources: dict[str, Source]
    """The source of each setting, by its name."""


def described(cls: type) -> tuple[Setting, ...]:
    """Return the settings that a dataclass declares, in the order of its fields; ignore other fields."""
    return tuple(
        Setting(
            name=_PLAIN_NAMES.get(field.name, field.name),
            field=field.name,
            unit=field.metadata["unit"],
            default=field.default,
            reason=field.metadata["reason"],
        )
        for field in dataclasses.fields(cls)
        if "unit" in field.metadata
    )


GROUPS: Final[Mapping[str, tuple[str, type]]] = {
    "transport_security": ("transport security", TransportSecuritySettings),
    "engine": ("bounds of the engine", EngineSettings),
    "grpc_face": ("bounds of the gRPC face", GrpcSettings),
    "http_faces": ("bounds of the HTTP faces", HttpSettings),
    "access": ("who is let in", AccessSettings),
    "auditing": ("the audit", AuditSettings),
    "quotas": ("quotas", QuotaSettings),
}
"""Groups of settings, by their field of ``ServerSettings``: title and class."""

SECTIONS: Final[Mapping[str, tuple[Setting, ...]]] = {
    "the process": described(ServerSettings),
    **{title: described(cls) for title, cls in GROUPS.values()},
}
EVERY: Final = tuple(chain.from_iterable(SECTIONS.values()))


def load(
    flags: Mapping[str, str | None] | None = None,
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Loaded:
    """Load the settings from all sources.

    Args:
        flags: Values from the command line, by setting name; None = not given.
        file: The TOML file; None = the file that ``TAILRACE_CONFIG`` names, if it is set.
        environment: The environment variables; None = those of this process.

    Raises:
        ConfigError: A value is not valid, a key does not exist, or the file cannot be read.
    """
    environment = os.environ if environment is None else environment
    if file is None and environment.get(CONFIG_VARIABLE):
        file = Path(environment[CONFIG_VARIABLE])
    given: dict[Source, dict[str, Any]] = {
        "file": {} if file is None else _read(file),
        "environment": {
            each.name: environment[each.variable]
            for each in EVERY
            if environment.get(each.variable)
        },
        "flag": {name: value for name, value in (flags or {}).items() if value is not None},
    }
    sources: dict[str, Source] = {
        each.name: next(
            (source for source in _BY_PRIORITY if each.name in given[source]), "default"
        )
        for each in EVERY
    }
    try:
        values = _model(given["file"], environment)(**given["flag"])
    except ValidationError as error:
        raise ConfigError(_complaint(error, sources, file)) from error
    # The model is flat, as the file and the flags are. Split its values into the dataclasses of the groups.
    groups = {field: cls(**_values_of(title, values)) for field, (title, cls) in GROUPS.items()}
    settings = ServerSettings(**_values_of("the process", values), **groups)
    return Loaded(settings, sources)


def _values_of(title: str, values: Any) -> dict[str, Any]:
    return {each.field: getattr(values, each.name) for each in SECTIONS[title]}


def misspelt(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return variables that look like misspelt settings, each with the variable that was probably meant.

    Other variables with the prefix are ignored: Kubernetes sets variables with the name of each service in
    every container.

    Args:
        environment: The environment variables; None = those of this process.
    """
    environment = os.environ if environment is None else environment
    known = {each.variable for each in EVERY} | _OTHER_VARIABLES
    found = {}
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, 1, cutoff=0.85)
            if near:
                found[name] = near[0]
    return found


_BY_PRIORITY: Final[tuple[Source, ...]] = ("flag", "environment", "file")


def render(loaded: Loaded) -> str:
    """Return the settings in effect as a TOML file, with their sources as comments; it loads to the same."""
    lines = ["# Settings of `tailrace serve` in effect, each with its source."]
    settings = loaded.settings
    owners = (settings, *(getattr(settings, field) for field in GROUPS))
    for (title, group), owner in zip(SECTIONS.items(), owners, strict=True):
        lines += ["", f"# {title}"]
        for each in group:
            value = getattr(owner, each.field)
            if value is None and each.unit in _PATHS:
                lines.append(f"# {each.name}: not set")
                continue
            entry = f"{each.name} = {_toml(each, value)}"
            lines.append(f"{entry:<36}# {loaded.sources[each.name]}; {each.unit}")
    return "\n".join(lines) + "\n"


def _toml(each: Setting, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float) and each.unit not in ("bytes", "seconds"):
        return str(value)
    text = each.format(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _read(file: Path) -> dict[str, Any]:
    """Return the keys of a TOML file; the keys of a table get the table's name as a prefix."""
    try:
        with file.open("rb") as stream:
            found = tomllib.load(stream)
    except OSError as error:
        raise ConfigError(f"settings file {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"settings file {file}: not TOML: {error}") from error
    # A table is a short form for several keys with one prefix: `certificate` of `[tls]` is `tls_certificate`.
    known = {each.name for each in EVERY}
    for table in [name for name, value in found.items() if isinstance(value, dict)]:
        if table not in known:
            found |= {f"{table}_{name}": value for name, value in found.pop(table).items()}
    for name in found:
        if name not in known:
            raise ConfigError(f"settings file {file}: no setting {name!r}{nearest(name, known)}")
    return found


class _Base(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        arbitrary_types_allowed=True,
    )


def _model(file: dict[str, Any], environment: Mapping[str, str]) -> type[Any]:
    """Return the pydantic model of all settings, with the given file and environment as its sources."""

    class Bound(_Base):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            variables = _Variables(settings_cls)
            variables.env_vars = {
                name.lower(): value for name, value in environment.items() if value
            }
            return init_settings, variables, InitSettingsSource(settings_cls, file)

    fields: dict[str, Any] = {each.name: (_type(each), each.default) for each in EVERY}
    model: type[Any] = create_model("Settings", __base__=Bound, **fields)
    return model


class _Variables(EnvSettingsSource):
    """The environment as a source of settings; a subclass, so that tests can pass another environment."""


_KINDS: Final = {
    name: kind
    for cls in (ServerSettings, *(cls for _, cls in GROUPS.values()))
    for name, kind in get_type_hints(cls).items()
}


def _type(each: Setting) -> Any:
    """Return the annotation that parses and bounds a setting's value."""
    if each in SECTIONS["quotas"] and each.name != "quota_address_share":
        count = Annotated[int, Field(ge=1, le=1 << 62)]
        return Annotated[count | None, BeforeValidator(_count_or_off)]
    if each.unit == "bytes":
        return Annotated[int, BeforeValidator(parse_bytes), Field(ge=1, le=1 << 62)]
    if each.unit == "seconds" and each.default is None:
        amount = Annotated[float, Field(gt=0, le=_DAY_S)]
        return Annotated[amount | None, BeforeValidator(_seconds_or_off)]
    if each.unit == "seconds":
        most = _LONGER_S.get(each.name, _DAY_S)
        return Annotated[float, BeforeValidator(parse_seconds), Field(gt=0, le=most)]
    if isinstance(each.default, bool):
        return Annotated[bool, BeforeValidator(_yes_or_no)]
    if isinstance(each.default, str) and each.unit == "origins":
        return Annotated[str, BeforeValidator(_origins)]
    if isinstance(each.default, str) and each.unit == "networks":
        return Annotated[str, BeforeValidator(_networks)]
    if each.name == "root_path":
        return Annotated[str, BeforeValidator(_root_path)]
    if isinstance(each.default, str) and each.unit == "names":
        return Annotated[str, BeforeValidator(_host_names)]
    if each.unit in _PATHS:
        return Annotated[Path | None, BeforeValidator(_path)]
    if each.name == "grpc":
        return Annotated[Address, NoDecode, BeforeValidator(Address.parse)]
    if each.name == "http":
        return Annotated[Address | None, NoDecode, BeforeValidator(_address_or_off)]
    if get_origin(kind := _KINDS.get(each.field)) is Literal:
        return kind
    return Annotated[int, Field(ge=1, le=1 << 62)]


def _yes_or_no(value: object) -> bool:
    found = {"yes": True, "true": True, "no": False, "false": False}.get(str(value).lower())
    if found is None:
        raise ValueError("write yes or no")
    return found


def _origins(value: object) -> str:
    found = listed(str(value))
    Origins(found)
    return ",".join(found)


def _networks(value: object) -> str:
    found = listed(str(value))
    TrustedProxies(found)
    return ",".join(found)


def _root_path(value: object) -> str:
    found = str(value).rstrip("/")
    if found and re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", found) is None:
        raise ValueError(
            "write a path such as /changes, of letters, digits and -._~ between its slashes"
        )
    if found.split("/")[1:2] in (["v1"], ["health"], ["metrics"], ["page"]):
        raise ValueError(
            "the server itself has paths that begin with this one; choose another path, such as "
            "/changes"
        )
    return found


def _host_names(value: object) -> str:
    found = listed(str(value))
    for name in found:
        if name != "*" and re.fullmatch(r"(\*\.)?[^\s:/*\[\]]+", name) is None:
            raise ValueError(
                f"{name!r} is not a host name; write a name such as db.example.com, without "
                "scheme and port, *.example.com for all names below it, or * for all names"
            )
    return ",".join(found)


def _path(value: object) -> Path | None:
    if value is None:
        return None
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("not a path; write the path of a file or folder as text")
    return Path(value).expanduser()


def _address_or_off(value: object) -> Address | None:
    return None if value in (None, "off") else Address.parse(value)


def _count_or_off(value: object) -> object:
    """Parse a setting that is a count or an amount of bytes; None if it is ``off``."""
    if value in (None, "off"):
        return None
    return value if isinstance(value, int) or str(value).isdecimal() else parse_bytes(value)


def _seconds_or_off(value: object) -> float | None:
    return None if value in (None, "off") else parse_seconds(value)


def _complaint(error: ValidationError, sources: dict[str, Source], file: Path | None) -> str:
    """Return pydantic's first error as one line, with the name of the setting in the form of its source."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    each = next((one for one in EVERY if one.name == name), None)
    if each is None:
        return f"no setting {name!r}{nearest(name, (one.name for one in EVERY))}"
    wrote = {"flag": each.flag, "environment": each.variable, "file": f"{file}: {each.name}"}
    where = wrote.get(sources[each.name], each.name)
    reason = first["msg"].removeprefix("Value error, ")
    reason = reason[:1].lower() + reason[1:]
    return f"{where}: {first['input']!r} is not valid: {reason}"
