"""Files of a folder as a stream of lines; runs on the driver."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

_GLOB: Final = re.compile(r"[\[\]{}*?\\]")
"""The characters of a folder's name that Spark would take for a pattern."""


def read_text_files(spark: SparkSession, folder: Path, batch_bytes: int) -> DataFrame:
    """Return the lines of all files below a folder, of `lines.LINES_SCHEMA`; see `Source.read`."""
    return (
        spark.readStream.format("text")
        .option("recursiveFileLookup", "true")
        # Spark would pass over files that are older than the newest by this much.
        .option("maxFileAge", "36500d")
        .option("maxBytesPerTrigger", str(batch_bytes))
        # Hadoop's own file system looks for a sum beside each file, under a name that a colon makes invalid.
        .option("fs.file.impl", "org.apache.hadoop.fs.RawLocalFileSystem")
        .option("fs.file.impl.disable.cache", "true")
        .load(_GLOB.sub(r"\\\g<0>", str(folder)))
        .selectExpr(
            "cast(value as binary) as value",
            "_metadata.file_path as file",
            "_metadata.file_block_start as block",
            "unix_micros(_metadata.file_modification_time) as modified_us",
        )
    )
