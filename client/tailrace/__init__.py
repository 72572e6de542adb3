"""Subscribe to the changes of a tailrace server: values, errors and the async client."""
