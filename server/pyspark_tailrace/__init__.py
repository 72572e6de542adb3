"""Registers ``format("tailrace")``: Spark imports every package whose name begins with ``pyspark_``.

If this import failed, Spark would find no Python data source at all. So without the packages of the extra
``spark`` there is no data source of this name.
"""

from __future__ import annotations

__all__ = []

try:
    from tailrace_server.pipeline.dataframe.datasource import TailraceDataSource as DefaultSource
except ModuleNotFoundError as missing:
    if (missing.name or "").startswith("tailrace"):
        raise
else:
    __all__ += ["DefaultSource"]
