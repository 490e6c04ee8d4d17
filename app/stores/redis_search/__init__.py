"""The connector to Redis's vector search. The service's cache in Redis is `app.storage.cache`."""

from app.stores.redis_search.store import RedisSearchStore as RedisSearchStore
