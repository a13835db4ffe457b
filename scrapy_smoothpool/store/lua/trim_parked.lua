-- Keeps the parked bounded in age and number: drops up to 1,000, the oldest first.
--
-- KEYS[1]  sorted set, id -> allocations when parked
-- KEYS[2]  sorted set, id -> server time of parking, s
-- ARGV[1]  integer, number to keep at most
-- ARGV[2]  integer, age to keep at most, s
-- ARGV[3]  integer, number to drop at most in this call (1,000)
-- Returns  integer, number dropped; call again until it is 0
-- Cost     O(dropped × log n)
local oldest = redis.call('TIME')[1] - ARGV[2]
local drop = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', oldest, 'LIMIT', 0, ARGV[3])
if #drop == 0 then
    local excess = math.min(redis.call('ZCARD', KEYS[2]) - ARGV[1], tonumber(ARGV[3]))
    if excess > 0 then
        drop = redis.call('ZRANGE', KEYS[2], 0, excess - 1)
    end
end
if #drop > 0 then
    redis.call('ZREM', KEYS[1], unpack(drop))
    redis.call('ZREM', KEYS[2], unpack(drop))
end
return #drop
