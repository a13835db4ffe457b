-- Forgets the records of those who are no members: what the loss of a key left.
--
-- KEYS[1]  sorted set, id -> allocations: the members in rotation (read)
-- KEYS[2]  sorted set, id -> allocations: the members that are out (read)
-- KEYS[3]  hash, id -> record, as in report_outcomes.lua
-- ARGV[n]  string, ids
-- Returns  integer, number forgotten
-- Cost     O(ids × log n)
local live = redis.call('ZMSCORE', KEYS[1], unpack(ARGV))
local benched = redis.call('ZMSCORE', KEYS[2], unpack(ARGV))
local strays = {}
for i, id in ipairs(ARGV) do
    if not live[i] and not benched[i] then
        strays[#strays + 1] = id
    end
end
return #strays > 0 and redis.call('HDEL', KEYS[3], unpack(strays)) or 0
