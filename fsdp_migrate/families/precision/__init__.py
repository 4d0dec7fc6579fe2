"""What MixedPrecision becomes."""
