"""Which projects have a label of their own in metrics: a bounded number, whatever callers make up."""

from __future__ import annotations

OTHER = "(other)"
"""The label of all projects that have none of their own. No project can be called so."""
MOST_PROJECTS = 200


class ProjectLabels:
    """Labels are given in the order in which projects become known, and kept until the server ends."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def know(self, project: str) -> None:
        """Give a project that holds entries a label, while there are any left."""
        if len(self._known) < self._most:
            self._known.add(project)

    def know_reported(self, project: str) -> None:
        """Give a project that is only reported on a label, while half are left: whoever may read may make them up."""
        if len(self._known) < self._most // 2:
            self._known.add(project)

    def knows(self, project: str) -> bool:
        """Return whether the project has a label of its own."""
        return project in self._known

    def label(self, project: str) -> str:
        """Return the label under which the project is counted."""
        return project if project in self._known else OTHER
