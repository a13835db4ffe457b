-- Gives the right to publish back and throws away what was staged but not swapped in.
--
-- KEYS[1]  string, token of the publishing worker
-- KEYS[2…] what was staged
-- ARGV[1]  string, token of this worker's attempt
-- Returns  integer, 1 if the right was still this worker's, else 0
-- Cost     O(1): freed in the background
redis.call('UNLINK', unpack(KEYS, 2))
if redis.call('GET', KEYS[1]) == ARGV[1] then
    return redis.call('UNLINK', KEYS[1])
end
return 0
