"""Which rows stay: restrict policies."""

from tf_dynemb.policy.restrict_policy import (
    FrequencyRestrictPolicy,
    RestrictPolicy,
    TimestampRestrictPolicy,
)

__all__ = ["FrequencyRestrictPolicy", "RestrictPolicy", "TimestampRestrictPolicy"]
