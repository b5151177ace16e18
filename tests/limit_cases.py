"""Limits of a table by the names that tests of servers and of replicas have for them."""

from tf_dynemb.policies import LFU, LRU, TTL, MinCount, Probability, Score, SmallNorm

CASES = {
    "LRU": {"eviction": LRU()},
    "LFU": {"eviction": LFU()},
    "LFU with a half-life": {"eviction": LFU(half_life_steps=4)},
    "LFU of epochs": {"eviction": LFU(epoch_steps=4)},
    "TTL": {"eviction": TTL(steps=3), "max_rows": None},
    "LRU and TTL": {"eviction": [LRU(), TTL(steps=3)]},
    "LFU and TTL": {"eviction": [LFU(), TTL(steps=5)]},
    "SmallNorm": {"eviction": SmallNorm()},
    "Score": {"eviction": Score()},
    "Score of a function": {"eviction": Score(lambda keys: keys * 7 % 61)},
    "MinCount": {"eviction": LRU(), "admission": MinCount(3)},
    "Probability": {"eviction": LFU(), "admission": Probability(0.4, seed=3)},
}


def takes_scores(table):
    """Whether scores come with the ids of a table."""
    eviction = table.config.eviction
    return isinstance(eviction, Score) and eviction.scores is None
