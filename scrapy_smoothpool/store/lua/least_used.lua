-- The plain pick: the member allocated least often so far, and one more to its count.
--
-- KEYS[1]  sorted set, id -> allocations
-- Returns  string id, or nil when the pool is empty (which means: no request)
-- Cost     O(log n)
--
-- Ties go by member order, bytewise. Reading and adding are one script, so two
-- workers never see the same minimum.
local member = redis.call('ZRANGE', KEYS[1], 0, 0)[1]
if not member then
    return false
end
redis.call('ZINCRBY', KEYS[1], 1, member)
return member
