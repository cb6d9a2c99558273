"""What is found in the configuration itself: critical alerts that only a machine is told of."""

from __future__ import annotations

from collections.abc import Iterator

from k3observe.config.errors import Problem
from k3observe.config.loader import Loaded
from k3observe.lint.disabled import Disabled
from k3observe.lint.finding import Finding
from k3observe.plan import Plan
from k3observe.render.alertmanager import machines_only

CHECK = "notify/critical-to-machine"


def findings(loaded: Loaded, text: str, plan: Plan) -> Iterator[Finding]:
    """A finding for each action whose critical alerts go to a webhook alone; comments in ``text`` switch it off."""
    comments = Disabled.read(loaded.source.file, text, ())
    for action, alerts in machines_only(plan).items():
        receiver = plan.config.notify.routes[action]
        problem = loaded.source.place(Problem(
            f"critical alerts reach only the webhook {receiver}, and no person: {', '.join(alerts)}",
            ("notify", "routes", action), fix="add notify.routes.critical"))  # fmt: skip
        finding = Finding.from_problem(problem, CHECK)
        if not comments.hides(finding):
            yield finding
