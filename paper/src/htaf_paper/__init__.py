"""The tables and figures of *A Composite Activation Function for Learning Stable Binary Representations*, one file
each."""
