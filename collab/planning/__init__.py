"""Choosing form and ranks: settings, costs, predicted errors, budgets and plans."""
