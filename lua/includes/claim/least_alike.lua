-- Claims of fewer messages do not ask whether all of them have one score: that would cost more than it saves.
local LEAST_ALIKE = 32
