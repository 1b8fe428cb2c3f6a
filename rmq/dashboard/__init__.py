"""`rmq dashboard`: web pages to monitor and control topics. Needs the extra `rmq[dashboard]`."""
