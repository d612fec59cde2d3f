"""A file to rewrite: what the code-editing benchmark gives to the model."""

from dataclasses import dataclass, field


@dataclass
class Item:
    name: str
    price: float
    quantity: int = 0

    def value(self) -> float:
        return self.price * self.quantity


@dataclass
class Inventory:
    items: dict[str, Item] = field(default_factory=dict)

    def add(self, item: Item) -> None:
        if item.name in self.items:
            self.items[item.name].quantity += item.quantity
        else:
            self.items[item.name] = item

    def remove(self, name: str, quantity: int) -> None:
        if name not in self.items:
            raise KeyError(name)
        if self.items[name].quantity < quantity:
            raise ValueError(f"only {self.items[name].quantity} of {name} left")
        self.items[name].quantity -= quantity

    def total(self) -> float:
        return sum(item.value() for item in self.items.values())

    def report(self) -> str:
        lines = [f"{item.name}: {item.quantity} x {item.price}" for item in self.items.values()]
        return "\n".join(lines)
