"""Ingests with a real Spark, in this process and in processes that are killed."""
