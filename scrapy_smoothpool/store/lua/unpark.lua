-- Forgets the parked count of up to 1,000 members that have returned to the live pool.
--
-- KEYS[1]  sorted set, id -> allocations: the members in rotation (read)
-- KEYS[2]  sorted set, id -> allocations: the members that are out (read)
-- KEYS[3]  sorted set, id -> allocations when parked
-- KEYS[4]  sorted set, id -> server time of parking, s
-- ARGV[n]  string, ids; those no longer in the live pool stay parked
-- Returns  integer, number forgotten
-- Cost     O(ids × log n)
local live = redis.call('ZMSCORE', KEYS[1], unpack(ARGV))
local benched = redis.call('ZMSCORE', KEYS[2], unpack(ARGV))
local back = {}
for i, id in ipairs(ARGV) do
    if live[i] or benched[i] then
        back[#back + 1] = id
    end
end
if #back > 0 then
    redis.call('ZREM', KEYS[3], unpack(back))
    redis.call('ZREM', KEYS[4], unpack(back))
end
return #back
