-- Lets a member that was out for a while back in without owing it the turns it missed.
--
-- Its count becomes the greater of its own and the least of the others; starting
-- below them it would take every pick until it had caught up.
--
-- KEYS[1]  sorted set, id -> allocations
-- ARGV[1]  string, the id that comes back
-- ARGV[2…] string, ids that are out themselves and set no minimum
-- Returns  integer, its count now, or nil when it is no longer a member (it is not added)
-- Cost     O(excluded + log n)
local CHUNK = 64

local own = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not own then
    return false
end

local passed = {}
for _, member in ipairs(ARGV) do
    passed[member] = true
end

local first = 0
while true do
    local found = redis.call('ZRANGE', KEYS[1], first, first + CHUNK - 1, 'WITHSCORES')
    for i = 1, #found, 2 do
        if not passed[found[i]] then
            local lowest = found[i + 1]
            if tonumber(lowest) > tonumber(own) then
                redis.call('ZADD', KEYS[1], 'XX', lowest, ARGV[1])
                own = lowest
            end
            return tonumber(own)
        end
    end
    if #found < 2 * CHUNK then
        return tonumber(own)
    end
    first = first + CHUNK
end
