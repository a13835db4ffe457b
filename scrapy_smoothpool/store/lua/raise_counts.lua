-- Raises counts that are below what the pool's least count was known to be.
--
-- After a loss of data (a flush, a replica that was behind, an old dump) the pool may be there
-- with lower counts than a worker has seen, or some members with lower counts than others: those
-- would take every pick until they had caught up.
--
-- KEYS[1]  sorted set, id -> allocations: the members in rotation
-- KEYS[2]  sorted set, id -> allocations: the members that are out
-- ARGV[1]  integer, the least count
-- ARGV[2]  integer, members to raise at most in this call (1,000)
-- Returns  integer, number raised; call again until it is 0
-- Cost     O(raised × log n)
local raised = 0
for _, key in ipairs(KEYS) do
    local low = redis.call('ZRANGEBYSCORE', key, '-inf', '(' .. ARGV[1], 'LIMIT', 0,
        ARGV[2] - raised)
    for _, id in ipairs(low) do
        redis.call('ZADD', key, 'XX', ARGV[1], id)
    end
    raised = raised + #low
end
return raised
