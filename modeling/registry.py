"""A family of interchangeable parts: one registry, names refused when taken or unknown."""

from collections.abc import Callable
from typing import TypeVar

Part = TypeVar("Part")


class Registry(dict[str, Part]):
    """Maps names to the members of a family: `registry[name]` is the member, and a ValueError where there is none.

    Args:
        noun: names the family in errors.
    """

    def __init__(self, noun: str) -> None:
        super().__init__()
        self.noun = noun

    def register(self, name: str) -> Callable[[Part], Part]:
        """Decorator that adds a member.

        Raises:
            ValueError: the name is taken.
        """

        def add(part: Part) -> Part:
            if name in self:
                raise ValueError(f"{self.noun}: expected a new name; got {name!r}, which is taken by {self[name]!r}")
            self[name] = part
            return part

        return add

    def __missing__(self, name: object) -> Part:
        raise ValueError(f"{self.noun}: expected one of {', '.join(sorted(self))}; got {name!r}")
