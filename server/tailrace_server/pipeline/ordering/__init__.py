"""Which of two changes of a row is the older one, by positions in the logs of the source and by its clock."""
