"""Which form and ranks: costs, predicted errors, budgets and plans."""

from .choice import Choice, choose, compare_forms
from .cost import LayerShape
from .plan import Plan, make_plan

__all__ = ["Choice", "LayerShape", "Plan", "choose", "compare_forms", "make_plan"]
