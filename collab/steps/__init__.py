"""Steps: every change of a model as a type, with its entry in the report and its section in the card."""
