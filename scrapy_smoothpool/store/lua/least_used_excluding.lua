-- The pick that passes some members over: the least allocated of the others.
--
-- KEYS[1]  sorted set, id -> allocations
-- ARGV[n]  string, ids that may not be picked
-- Returns  string id, or nil when nobody else is there (which means: no request)
-- Cost     O(excluded + log n); it stops at the first member that may be picked
local CHUNK = 64

local excluded = {}
for _, member in ipairs(ARGV) do
    excluded[member] = true
end

local first = 0
while true do
    local members = redis.call('ZRANGE', KEYS[1], first, first + CHUNK - 1)
    for _, member in ipairs(members) do
        if not excluded[member] then
            redis.call('ZINCRBY', KEYS[1], 1, member)
            return member
        end
    end
    if #members < CHUNK then
        return false
    end
    first = first + CHUNK
end
