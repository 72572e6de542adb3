"""Registers ``format("tailrace")`` with every Spark session: Spark imports all packages named ``pyspark_…``."""

from __future__ import annotations

from tailrace_server.pipeline.dataframe.datasource import TailraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
