-- The clock of the server that has the pool: any other of a cluster may be ahead or behind.
--
-- KEYS[1]  any of the pool's keys, for the way there
-- Returns  integer, ms
-- Cost     O(1)
local time = redis.call('TIME')
return time[1] * 1000 + math.floor(time[2] / 1000)
