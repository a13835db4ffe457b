-- Forgets the parked count of up to 1,000 members that have returned to the live pool.
--
-- KEYS[1]  sorted set, id -> allocations: the live pool (read)
-- KEYS[2]  sorted set, id -> allocations when parked
-- KEYS[3]  sorted set, id -> server time of parking, s
-- ARGV[n]  string, ids; those no longer in the live pool stay parked
-- Returns  integer, number forgotten
-- Cost     O(ids × log n)
local live = redis.call('ZMSCORE', KEYS[1], unpack(ARGV))
local back = {}
for i, id in ipairs(ARGV) do
    if live[i] then
        back[#back + 1] = id
    end
end
if #back > 0 then
    redis.call('ZREM', KEYS[2], unpack(back))
    redis.call('ZREM', KEYS[3], unpack(back))
end
return #back
