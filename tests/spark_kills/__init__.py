"""Kills Spark's drivers and JVMs at random moments, and judges what their queries and jobs have left behind."""
