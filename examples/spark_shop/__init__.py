"""Two sample applications on Spark: price pictures and audiences of a shop. The programs `../spark_*.py` run them."""
