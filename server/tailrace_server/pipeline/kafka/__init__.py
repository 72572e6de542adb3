"""Kafka: topics read by librdkafka, from the offsets in the log; batches go to the driver of transactions."""
