"""What graphs mean in NumPy: the evaluator in f64, and the backend without a GPU."""
