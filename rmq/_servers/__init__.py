"""Which Redis servers there are, and the connections to each."""
