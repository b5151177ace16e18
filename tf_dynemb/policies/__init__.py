"""Which ids get rows, which rows stay and which leave: admission, restrict and eviction policies."""

from tf_dynemb.base.public_names import shows
from tf_dynemb.policies.admission import AdmissionPolicy, Custom, MinCount, Probability
from tf_dynemb.policies.eviction import LFU, LRU, TTL, EvictionPolicy, Score, SmallNorm
from tf_dynemb.policies.restrict_policy import (
    FrequencyRestrictPolicy,
    RestrictPolicy,
    TimestampRestrictPolicy,
)

__all__ = [
    "AdmissionPolicy",
    "Custom",
    "EvictionPolicy",
    "FrequencyRestrictPolicy",
    "LFU",
    "LRU",
    "MinCount",
    "Probability",
    "RestrictPolicy",
    "Score",
    "SmallNorm",
    "TTL",
    "TimestampRestrictPolicy",
]
__dir__ = shows(__all__)
