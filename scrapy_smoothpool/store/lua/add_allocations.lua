-- Adds allocations that a worker made by itself while Redis was away.
--
-- KEYS[1]  sorted set, id -> allocations: the members in rotation
-- KEYS[2]  sorted set, id -> allocations: the members that are out
-- KEYS[3]  sorted set, id -> allocations when parked
-- KEYS[4]  string, number of the last addition of this worker
-- ARGV[1]  integer, number of this addition
-- ARGV[2]  integer, ms for which it is remembered
-- ARGV[3]  string, JSON: an object of id -> allocations
-- Returns  integer, 1; 0 for an addition that was made before, nothing having changed
-- Cost     O(ids × log n)
if (tonumber(redis.call('GET', KEYS[4])) or 0) >= tonumber(ARGV[1]) then
    return 0
end
for id, count in pairs(cjson.decode(ARGV[3])) do
    for i = 1, 3 do
        if redis.call('ZSCORE', KEYS[i], id) then
            redis.call('ZINCRBY', KEYS[i], string.format('%.0f', count), id)
            break
        end
    end
end
redis.call('SET', KEYS[4], ARGV[1], 'PX', ARGV[2])
return 1
