"""``where`` by types: inputs made of the columns of entity types, and what is given as trees."""
