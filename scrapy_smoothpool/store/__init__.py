"""The shared pool's one truth, in Redis. Nothing outside this package imports redis.

``url``         what ``SMOOTHPOOL_REDIS_URL`` may say, and how it is shown without its login
``connection``  the client, and the synchronous PING at start
``errors``      Redis's many errors as the two this package raises
``keys``        every key, under one hash tag
``script``      a Lua script as it lies in the package
``scripts``     one typed function for each of them
``verdicts``    outcomes that are told to the pool, and what it makes of them
``publish``     a list becomes the pool's list, at once and without losing a count
``reading``     what a worker reads of the pool
``shared_pool`` what a strategy sees of all this
"""
