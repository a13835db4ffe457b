-- Several picks in one call: what least_used.lua does, as often as asked.
--
-- KEYS[1]  sorted set, id -> allocations
-- ARGV[1]  integer, picks wanted
-- Returns  a JSON list (one string is read by the client in a fifth of the time that many
--          take) of the last one's count, this pick included, and the ids in the order of
--          their picks; fewer than asked only when the pool is empty, and nil for none (which
--          means: no request)
-- Cost     O(picks × log n)
local picked = {''}
for i = 1, ARGV[1] do
    local member = redis.call('ZRANGE', KEYS[1], 0, 0)[1]
    if not member then
        break
    end
    picked[1] = redis.call('ZINCRBY', KEYS[1], 1, member)
    picked[i + 1] = member
end
return #picked > 1 and cjson.encode(picked)
