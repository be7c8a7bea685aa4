"""What the records say: pure functions over DataFrames, and the reports that render them."""
