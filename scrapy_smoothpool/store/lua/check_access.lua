-- Finds out which commands of the pool's scripts this user may not run, before they are needed.
--
-- Each is called in a way that changes nothing: who writes meets a string where it expects
-- something else, the others a key that does not exist.
--
-- KEYS[1]  string, exists for a second
-- KEYS[2]  never exists
-- Returns  names of the commands that the user may not run or the server does not know; an
--          error when the server takes no writes at all (a replica, no memory left)
-- Cost     O(commands)
local calls = {
    {'SET', KEYS[1], '', 'PX', '1000'},
    {'GET', KEYS[1]},
    {'TIME'},
    {'EXISTS', KEYS[2]},
    {'UNLINK', KEYS[2]},
    {'RENAME', KEYS[2], KEYS[2]},
    {'PERSIST', KEYS[2]},
    {'EXPIRE', KEYS[2], '1'},
    {'PEXPIRE', KEYS[2], '1'},
    {'HSET', KEYS[1], 'f', 'v'},
    {'HDEL', KEYS[2], 'f'},
    {'HGET', KEYS[2], 'f'},
    {'HMGET', KEYS[2], 'f'},
    {'HEXISTS', KEYS[2], 'f'},
    {'HLEN', KEYS[2]},
    {'HSCAN', KEYS[2], '0'},
    {'SADD', KEYS[1], 'm'},
    {'SCARD', KEYS[2]},
    {'SPOP', KEYS[2]},
    {'ZADD', KEYS[1], '0', 'm'},
    {'ZINCRBY', KEYS[1], '1', 'm'},
    {'ZREM', KEYS[2], 'm'},
    {'ZREMRANGEBYRANK', KEYS[2], '0', '0'},
    {'ZCARD', KEYS[2]},
    {'ZRANGE', KEYS[2], '0', '0'},
    {'ZRANGEBYSCORE', KEYS[2], '0', '0'},
    {'ZSCORE', KEYS[2], 'm'},
    {'ZMSCORE', KEYS[2], 'm'},
    {'ZSCAN', KEYS[2], '0'},
    {'ZDIFF', '1', KEYS[2]},
    {'ZINTER', '1', KEYS[2]},
}
local refused = {}
for i, call in ipairs(calls) do
    local reply = redis.pcall(unpack(call))
    local text = type(reply) == 'table' and reply.err
    if text and (string.find(text, 'ermission') or string.find(text, 'can\'t run')
        or string.find(text, 'nknown'))
    then
        refused[#refused + 1] = call[1]
    elseif text and i == 1 then
        return reply
    end
end
return refused
