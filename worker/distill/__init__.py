"""Trains a DSpark drafter for a pair's target."""
