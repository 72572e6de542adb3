"""Keep the history of orders: a slowly changing dimension of type 2, as a declarative pipeline of Spark.

``spark-pipelines run`` beside the log root needs a catalog whose tables support MERGE, such as Delta's or
Iceberg's: set it as ``catalog`` in spark-pipeline.yml.
"""

from pathlib import Path

from pyspark import pipelines
from pyspark.sql import DataFrame, SparkSession


@pipelines.temporary_view
def order_changes() -> DataFrame:
    """Return the changes of orders: one row each."""
    place = {"log": str(Path("log").absolute()), "catalog": "shop", "entityType": "order"}
    changes = SparkSession.active().readStream.format("tailrace").options(**place).load()
    return changes.where("_change_type <> 'update_preimage'")


pipelines.create_streaming_table("order_history")
pipelines.create_auto_cdc_flow(
    target="order_history",
    source="order_changes",
    keys=["id"],
    sequence_by="_commit_version",
    apply_as_deletes="_change_type = 'delete'",
    except_column_list=["_change_type", "_commit_timestamp", "_position"],
    stored_as_scd_type=2,
)
