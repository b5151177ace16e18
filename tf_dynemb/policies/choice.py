"""One argument that takes policies of both kinds: those that evict, and those that restrict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from tf_dynemb.policies.eviction import EvictionPolicy, eviction_of
from tf_dynemb.policies.restrict_policy import RestrictPolicy, policy_class

Policy: TypeAlias = (
    EvictionPolicy | Sequence[EvictionPolicy] | RestrictPolicy | type[RestrictPolicy] | str | None
)


def policy_fields(policy: Policy) -> dict[str, Any]:
    """The fields of a TableConfig that such an argument means.

    Args:
        policy: a RestrictPolicy, its class or the name that Keras has for it; or an eviction policy, or
            a list of orders and a TTL; or None.

    Raises:
        TypeError, ValueError: something else.

    Example:

    >>> import tf_dynemb
    >>> sorted(policy_fields(tf_dynemb.TimestampRestrictPolicy))
    ['restrict_policy']
    >>> sorted(policy_fields(tf_dynemb.policies.LRU()))
    ['eviction']
    """
    if policy is None:
        return {}
    kind = policy if isinstance(policy, type) else type(policy)
    if isinstance(policy, str) or issubclass(kind, RestrictPolicy):
        return {"restrict_policy": policy_class(policy)}
    return {"eviction": eviction_of(policy)}
