"""What FBGEMM does with the rows of virtual tables that trigger_feature_evict looks at, in dicts.

Of several processes each has the rows that it owns, and looks at these; what trains them is all batches.
"""

import numpy as np

STEPS, LOOK_EVERY, BATCH = 20, 4, 12
_NUMBERS = np.random.default_rng(31)
IDS = _NUMBERS.zipf(1.3, (STEPS, BATCH)) % 60
SCORES = _NUMBERS.exponential(size=(STEPS, BATCH)).astype(np.float32)
MINUTE = 60 * 10**6

# The policy's name, and its arguments; the model reads the same arguments.
CASES = {
    "counts": ("CountBased", {"eviction_threshold": 3, "decay_rate": 1.0}),
    "counts that fade": (
        "CountBased",
        {
            "eviction_threshold": 2,
            "decay_rate": 0.8,
            "training_id_eviction_trigger_count": 12,
            "inference_eviction_threshold": 3,
        },
    ),
    "counts and times": (
        "CountTimestampMixed",
        {
            "eviction_threshold": 2,
            "decay_rate": 0.8,
            "eviction_ttl_mins": 5,
            "inference_eviction_threshold": 3,
        },
    ),
    "norms": ("FeatureL2NormBased", {"eviction_threshold": 2, "inference_eviction_threshold": 5}),
    "scores": (
        "FeatureScoreBased",
        {
            "decay_rate": 0.8,
            "training_id_eviction_trigger_count": 12,
            "training_id_keep_count": 7,
            "max_inference_id_num_per_rank": 4,
            "inference_eviction_feature_score_threshold": 0.5,
        },
    ),
}


class Process:
    """The rows of one process: of each what it is judged by, and the minute of its last write."""

    def __init__(self, case):
        self.kind, self.arguments = CASES[case]
        self.rows, self.written = {}, {}

    def write(self, key, times, score, now):
        """Of one row, which occurs so many times in the step, whose scores sum up to that."""
        adds = {"FeatureL2NormBased": times, "FeatureScoreBased": score}.get(self.kind, 1)
        self.rows[key] = self.rows.get(key, 0) + adds
        self.written[key] = now

    def look(self, now):
        """trigger_feature_evict; returns how many rows have left."""
        rate = self.arguments.get("decay_rate", 1)
        self.rows = {key: number * rate for key, number in self.rows.items()}
        if len(self.rows) <= self.arguments.get("training_id_eviction_trigger_count", 0):
            return 0
        return self._leave(now, "eviction_threshold", "training_id_keep_count")

    def serve(self, now):
        """evict_for_inference; returns how many rows have left."""
        below = "inference_eviction_threshold"
        if self.kind == "FeatureScoreBased":
            below = "inference_eviction_feature_score_threshold"
        below = below if below in self.arguments else "eviction_threshold"
        return self._leave(now, below, "max_inference_id_num_per_rank")

    def _leave(self, now, below, keep):
        least, before = self.arguments.get(below, 0), len(self.rows)
        minutes = self.arguments.get("eviction_ttl_mins", -1)
        self.rows = {
            key: number
            for key, number in self.rows.items()
            if number >= least or now - self.written[key] <= minutes
        }
        best = sorted(self.rows, key=self.rows.get, reverse=True)[: self.arguments.get(keep)]
        self.rows = {key: self.rows[key] for key in best}
        return before - len(self.rows)


class Model:
    """So many processes.

    Args:
        case: of CASES.
        owners: of keys (n,): the index of each one's process (n,).
        processes: how many.
    """

    def __init__(self, case, owners, processes):
        self.owners = owners
        self.processes = [Process(case) for _ in range(processes)]

    def train(self, step, ids, scores):
        """The batch of all processes."""
        keys, places, times = np.unique(ids, return_inverse=True, return_counts=True)
        sums = np.bincount(places, scores)
        for key, owner, *one in zip(keys.tolist(), self.owners(keys), times, sums, strict=True):
            self.processes[owner].write(key, *one, step)

    def seen(self, removed):
        """What a scene says of each process."""
        return [
            {"removed": left, "rows": sorted(process.rows)}
            for left, process in zip(removed, self.processes, strict=True)
        ]

    def run(self):
        """What each process is to see: a list, for each look, and one more to be served."""
        seen = []
        for step in range(STEPS):
            self.train(step, IDS[step], SCORES[step])
            if step % LOOK_EVERY == LOOK_EVERY - 1:
                seen.append(self.seen([process.look(step) for process in self.processes]))
        seen.append(self.seen([process.serve(STEPS) for process in self.processes]))
        return [list(of_process) for of_process in zip(*seen, strict=True)]
