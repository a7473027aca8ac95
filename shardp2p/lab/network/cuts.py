"""What is cut in a network. Pure."""

from __future__ import annotations

from shardp2p.lab.network.description import Description


class Cuts:
    """Nodes without a cable, and pairs of hosts between which nothing passes, from the first to the second.

    A router stands for itself and all hosts behind it.
    """

    def __init__(self, description: Description) -> None:
        self._description = description
        self._nodes: set[str] = set()
        self._pairs: set[tuple[str, str]] = set()

    def cut(self, a: str, b: str | None = None) -> None:
        """Let nothing pass between two nodes, or, of one, to and from outside, not even what is on its way."""
        if b is None:
            self._nodes.add(a)
        else:
            self._pairs |= self._from(a, b) | self._from(b, a)

    def cut_one_way(self, source: str, destination: str) -> None:
        """Let nothing pass from the first to the second."""
        self._pairs |= self._from(source, destination)

    def restore(self, a: str | None = None, b: str | None = None) -> None:
        """Undo cuts: those of one node, those between two, or, without names, all."""
        if a is None:
            self._nodes.clear()
            self._pairs.clear()
        elif b is None:
            self._nodes.discard(a)
        else:
            self._pairs -= self._from(a, b) | self._from(b, a)

    def is_off(self, node: str) -> bool:
        """Whether the node has no cable."""
        return node in self._nodes

    def are_cut(self, source: str, host: str) -> bool:
        """Whether nothing of `source` comes to `host`."""
        return host in self._nodes or (source, host) in self._pairs

    def _from(self, a: str, b: str) -> set[tuple[str, str]]:
        ends_a, ends_b = ({name, *self._description.hosts_at(name)} for name in (a, b))
        return {(x, y) for x in ends_a for y in ends_b}
