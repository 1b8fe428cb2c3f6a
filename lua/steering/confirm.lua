-- Change nothing in one slot, by a write: a WAIT behind it covers all that others have done there.
--
-- KEYS[1]  meta  HASH  written, and left as it was
-- Returns: nothing
-- Errors: none of its own
-- Complexity: O(1)
-- Notes: for steps that look first, and may find that another client has done it all.
-- @include totals

local meta = KEYS[1]

replicate(meta)
return false
