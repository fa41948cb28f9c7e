"""The benches of `stoker bench`: each chooses contestants, loads them in turns and makes its report."""
