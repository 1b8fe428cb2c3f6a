"""What is wrong with the topics: figures read through a client, and findings in words."""
