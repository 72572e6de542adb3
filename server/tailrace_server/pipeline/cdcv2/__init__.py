"""The Materialize CDCv2 reader as a stage of the pipeline: in the driver, or data-parallel on Spark."""
