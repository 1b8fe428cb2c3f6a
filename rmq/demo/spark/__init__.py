"""Sample applications on Spark: price pictures and audiences of a shop."""
