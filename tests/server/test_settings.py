"""Settings: file, environment, flags in rising priority; every mistake is one line that names its place."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tailrace_server import settings as server_settings
from tailrace_server.errors import ConfigError
from tailrace_server.resources.settings import EngineSettings
from tailrace_server.units import Address


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tailrace.toml"
    path.write_text(text)
    return path


def test_flags_win_over_variables_win_over_the_file_win_over_defaults(tmp_path: Path) -> None:
    file = written(tmp_path, 'memory = "1MiB"\nring_captures = 11\nscan_rows = 12\n')
    environment = {"TAILRACE_MEMORY": "2MiB", "TAILRACE_RING_CAPTURES": "21"}
    loaded = server_settings.load({"memory": "3MiB"}, file=file, environment=environment)
    engine = loaded.settings.engine
    assert (engine.memory_bytes, engine.ring_captures, engine.scan_rows) == (3 << 20, 21, 12)
    assert engine.ring_bytes == EngineSettings().ring_bytes
    assert [
        loaded.sources[name] for name in ("memory", "ring_captures", "scan_rows", "ring_bytes")
    ] == [*("flag", "environment", "file", "default")]


def test_every_engine_bound_is_a_setting() -> None:
    """A bound that nobody can set would be a constant in disguise."""
    assert [each.field for each in server_settings.SECTIONS["bounds of the engine"]] == [
        field.name for field in dataclasses.fields(EngineSettings)
    ]
    assert all(each.unit and each.reason for each in server_settings.EVERY)
    assert len({each.name for each in server_settings.EVERY}) == len(server_settings.EVERY)


def test_defaults_listen_on_loopback_only() -> None:
    settings = server_settings.load(environment={}).settings
    assert settings.grpc == Address("127.0.0.1", 7411)
    assert settings.http == Address("127.0.0.1", 7412)
    assert settings.log is None


def test_values_may_carry_units_and_http_may_be_off() -> None:
    settings = server_settings.load(
        {"log": "~/log", "http": "off", "heartbeat_interval_s": "250ms", "rings_bytes": "1.5MiB"},
        environment={},
    ).settings
    assert settings.log == Path("~/log").expanduser()
    assert settings.http is None
    assert settings.engine.heartbeat_interval_s == 0.25
    assert settings.engine.rings_bytes == 3 << 19


def test_the_file_may_be_named_by_a_variable(tmp_path: Path) -> None:
    file = written(tmp_path, 'grpc = "[::1]:0"\n')
    settings = server_settings.load(environment={"TAILRACE_CONFIG": str(file)}).settings
    assert settings.grpc == Address("::1", 0)


def test_what_print_config_shows_reads_back_equal(tmp_path: Path) -> None:
    first = server_settings.load(
        {"log": '/odd "name"\\', "http": "off", "memory": "512MiB", "send_deadline_s": "1500ms"},
        environment={},
    )
    file = written(tmp_path, server_settings.render(first))
    assert server_settings.load(file=file, environment={}).settings == first.settings
    assert "# flag" in server_settings.render(first)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("memroy = 1", "no setting 'memroy'; did you mean memory?"),
        ("memory = [1]", r"memory: \[1\] is not valid"),
        ("[memory]\na = 1", "memory: .* is not valid"),
        ("ring_captures = 0", "ring_captures: 0 is not valid: .* greater than or equal to 1"),
        ("memory = ", "not TOML"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        server_settings.load(file=written(tmp_path, text), environment={})
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing.toml: No such file"):
        server_settings.load(file=tmp_path / "missing.toml", environment={})


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        ({"grpc": "7411"}, {}, "--grpc: '7411' is not valid: write an address as host:port"),
        ({"log_level": "loud"}, {}, "--log-level: 'loud' is not valid"),
        ({}, {"TAILRACE_MEMORY": "lots"}, "TAILRACE_MEMORY: 'lots' is not valid: write an amount"),
        ({}, {"TAILRACE_SEND_DEADLINE_S": "0"}, "TAILRACE_SEND_DEADLINE_S: .* greater than 0"),
        ({"reader_threads": "two"}, {}, "--reader-threads: 'two' is not valid"),
    ],
)
def test_a_mistake_is_named_where_it_was_made(
    flags: dict[str, str], environment: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        server_settings.load(flags, environment=environment)


@pytest.mark.parametrize(("text", "expected"), [("no", False), ("yes", True), ("False", False)])
def test_a_switch_reads_yes_or_no(text: str, expected: bool) -> None:
    loaded = server_settings.load({"graphql_graphiql": text}, environment={})
    assert loaded.settings.http_faces.graphql_graphiql is expected
    assert f"graphql_graphiql = {str(expected).lower()}" in server_settings.render(loaded)
    with pytest.raises(ConfigError, match="yes or no"):
        server_settings.load({"graphql_graphiql": "maybe"}, environment={})


def test_hosts_are_names_without_scheme_and_port() -> None:
    given = {"http_hosts": " db.example.com, *.svc.local ,"}
    assert server_settings.load(given, environment={}).settings.http_faces.http_hosts == (
        "db.example.com,*.svc.local"
    )
    for wrong in ("https://a.example", "a.example:80", "a.*", "*.", "a b", "[::1]"):
        with pytest.raises(
            ConfigError, match=r"--http-hosts: .* is not a host name; .* without scheme and port"
        ):
            server_settings.load({"http_hosts": wrong}, environment={})


def test_a_variable_that_looks_misspelt_is_told_and_others_are_left_alone() -> None:
    kubernetes = {
        "TAILRACE_SERVICE_HOST": "10.0.0.7",
        "TAILRACE_PORT_7411_TCP": "tcp://10.0.0.7:7411",
        "TAILRACE_PORT": "tcp://10.0.0.7:7411",
    }
    right = {"TAILRACE_LOG": "log", "TAILRACE_CONFIG": "c.toml", "TAILRACE_SERVER": "host:1"}
    wrong = {"TAILRACE_FRAME_BYTES": "1", "TAILRACE_RINGCAPTURES": "2", "TAILRACE_MEMROY": "3"}
    assert server_settings.misspelt({**kubernetes, **right, **wrong, "PATH": ""}) == {
        "TAILRACE_FRAME_BYTES": "TAILRACE_FRAMES_BYTES",
        "TAILRACE_MEMROY": "TAILRACE_MEMORY",
        "TAILRACE_RINGCAPTURES": "TAILRACE_RING_CAPTURES",
    }


def test_an_age_of_connections_is_a_time_or_off() -> None:
    for text, age_s in (("1h", 3600.0), ("off", None)):
        loaded = server_settings.load({"max_connection_age": text}, environment={})
        assert loaded.settings.engine.max_connection_age_s == age_s
    with pytest.raises(ConfigError, match=r"--max-connection-age: .* greater than 0"):
        server_settings.load({"max_connection_age": "0"}, environment={})
