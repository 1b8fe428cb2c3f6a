"""`rmq dashboard`: web pages to monitor and manage topics. Requires the extra `rmq[dashboard]`."""
