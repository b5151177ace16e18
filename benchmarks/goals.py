"""Prints how far the goals of compare/goals.py are reached: the worst point of each that was measured.

.venv/bin/python benchmarks/goals.py FILE...

takes files of benchmarks/run.py (--json) and of ../shared/anchors/run.py (--out).
"""

import operator
import sys

from compare.goals import GOALS, load, measured, not_measured
from compare.report import markdown
from rich import box
from rich.table import Table


def main(paths):
    if not paths:
        sys.exit(__doc__)
    try:
        records = [record for path in paths for record in load(path)]
    except (OSError, ValueError) as error:
        sys.exit(f"{error}")
    table = Table("work", "against", "goal", "measured", "at", "met", box=box.MARKDOWN)
    for goal in GOALS:
        at_most = goal.at_most is not None
        wanted = f"<= {goal.at_most:g}" if at_most else f"{goal.at_least:.3g}x"
        cells = [goal.work, ", ".join(goal.peers), wanted]
        reached = measured(goal, records)
        if not reached:
            table.add_row(*cells, "", "", "not measured")
            continue
        by_value = operator.attrgetter("value")
        worst = max(reached, key=by_value) if at_most else min(reached, key=by_value)
        met = worst.value <= goal.at_most if at_most else worst.value >= goal.at_least
        unknown = "".join(f", without {what}" for what in not_measured(goal, reached))
        answer = ("yes" if met else "no") + unknown
        table.add_row(*cells, f"{worst.value:.3g}" + ("" if at_most else "x"), worst.point, answer)
    print(markdown(table))


if __name__ == "__main__":
    main(sys.argv[1:])
