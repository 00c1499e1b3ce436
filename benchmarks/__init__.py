"""Evaluation and measurements of UEC. Imports uec; nothing imports it."""
