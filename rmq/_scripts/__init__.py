"""One function for each Lua script: arguments in, values out; and every key."""
